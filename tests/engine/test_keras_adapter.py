"""Each private place of Keras that kdist stands on: these fail loudly when one of them changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute import keras_adapter

from .cases import HEADS_X, HEADS_Y, LOGITS, L, WithoutTraining, WithTraining, heads
from .harness import strategy_of


def compiled():
    model = heads()()
    y_pred = model(HEADS_X)
    model.compute_loss(x=HEADS_X, y=HEADS_Y, y_pred=y_pred)
    return model, y_pred


def test_losses_come_with_names_paths_and_trackers_in_order():
    model, _ = compiled()
    entries = keras_adapter.loss_entries(model)
    assert [entry.name for entry in entries] == ["label", "value"]
    assert [tuple(entry.path) for entry in entries] == [("label",), ("value",)]
    assert [entry.tracker.name for entry in entries] == ["label_loss", "value_loss"]
    assert all(callable(entry.loss) for entry in entries)


def test_replaced_losses_are_called_in_place_and_put_back():
    model, y_pred = compiled()
    before = float(keras_adapter.call_compiled_loss(model, HEADS_Y, y_pred, None))
    ones = [lambda y, p, w: tf.constant(1.0), lambda y, p, w: tf.constant(10.0)]
    with keras_adapter.replaced_losses(model, ones):
        replaced = float(keras_adapter.call_compiled_loss(model, HEADS_Y, y_pred, None))
    assert replaced == pytest.approx(0.7 * 1 + 2.0 * 10)
    assert float(keras_adapter.call_compiled_loss(model, HEADS_Y, y_pred, None)) == before


def test_loss_tracker_is_the_metric_behind_loss():
    model, _ = compiled()
    assert keras_adapter.loss_tracker(model).name == "loss"
    assert any(metric is keras_adapter.loss_tracker(model) for metric in model.metrics)


def test_calls_with_and_without_training_are_told_apart():
    assert keras_adapter.calls_with_training(WithTraining())
    assert not keras_adapter.calls_with_training(WithoutTraining())


def test_overridden_steps_are_seen():
    class Own(keras.Model):
        def train_step(self, data):
            return {}

        def test_step(self, data):
            return {}

        def compute_loss(self, *args, **options):
            return 0.0

    plain, own = keras.Model(), Own()
    for check in (
        keras_adapter.overrides_train_step,
        keras_adapter.overrides_test_step,
        keras_adapter.overrides_compute_loss,
    ):
        assert check(own) and not check(plain), check.__name__


def test_masks_are_attached_to_outputs():
    layer = L.Embedding(5, 2, mask_zero=True)
    output = layer(np.array([[1, 0]]))
    np.testing.assert_array_equal(keras_adapter.keras_mask(output), [[True, False]])
    assert keras_adapter.keras_mask(tf.zeros([2])) is None


def test_a_mask_can_be_attached_again_to_a_part():
    output = L.Embedding(5, 2, mask_zero=True)(np.array([[1, 0], [2, 3]]))
    part = output[:1]
    keras_adapter.attach_mask(part, keras_adapter.keras_mask(output)[:1])
    np.testing.assert_array_equal(keras_adapter.keras_mask(part), [[True, False]])
    dense = L.Dense(1)
    dense.supports_masking = True
    np.testing.assert_array_equal(keras_adapter.keras_mask(dense(part)), [[True, False]])


def test_all_layers_are_found_at_any_depth():
    inner = keras.Sequential([keras.Input((4,)), L.Dense(4, name="deep")])
    wrapped = L.TimeDistributed(L.Dense(2, name="wrapped"))
    model = keras.Sequential([keras.Input((3, 4)), L.TimeDistributed(inner), wrapped])
    names = [layer.name for layer in keras_adapter.all_layers(model)]
    assert {model.name, "deep", "wrapped"} <= set(names)
    assert "deep" not in [layer.name for layer in model.layers]
    shared = WithoutTraining()
    assert shared.first in keras_adapter.all_layers(shared)


def test_what_decides_the_learning_rate_is_told_apart():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    assert keras_adapter.learning_rate_setting(keras.optimizers.SGD(schedule)) is schedule
    plain = keras.optimizers.SGD(0.1)
    assert keras_adapter.learning_rate_setting(plain) is plain.learning_rate
    two = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.1), {".*kernel": plain})
    )
    assert keras_adapter.learning_rate_setting(two) is None


def test_a_variable_becomes_a_view_of_another_value():
    variable = keras.Variable(np.zeros(3, "float32"))
    value = tf.Variable([1.0, 2.0, 3.0])
    keras_adapter.rebind(variable, value)
    value.assign_add([1.0, 1.0, 1.0])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), [2, 3, 4])


def test_a_bucket_takes_the_path_that_rules_go_by():
    variable = keras.Variable(np.zeros(3, "float32"))
    keras_adapter.set_path(variable, "dense/bias", "bias")
    assert (variable.path, variable.name) == ("dense/bias", "bias")


def test_weight_decay_exclusions_are_seen():
    optimizer = keras.optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    layer = L.Dense(2)
    layer.build((None, 2))
    assert keras_adapter.uses_weight_decay(optimizer, layer.kernel)
    assert not keras_adapter.uses_weight_decay(optimizer, layer.bias)


def test_slots_are_recorded_with_their_variable_and_the_hook_is_removed():
    optimizer = keras.optimizers.Adam(0.1)
    variables = [keras.Variable(np.zeros(2, "float32")) for _ in range(2)]
    with keras_adapter.recorded_slots(optimizer) as recorded:
        optimizer.build(variables)
    owners = [id(reference) for reference, _ in recorded]
    assert sorted(owners) == sorted([id(v) for v in variables] * 2)
    assert "add_variable_from_reference" not in vars(optimizer)


def test_slots_are_found_inside_of_an_update():
    found = []

    class Looking(keras.optimizers.Adam):
        def update_step(self, gradient, variable, learning_rate):
            found.append(keras_adapter.slots_of(self, variable, "_momentums", "_velocities"))
            super().update_step(gradient, variable, learning_rate)

    optimizer = Looking(0.1)
    variables = [keras.Variable(np.zeros(2, "float32")) for _ in range(2)]
    optimizer.build(variables)
    optimizer.apply([tf.ones([2]), 2 * tf.ones([2])], variables)
    for (mean, square), gradient in zip(found, (1, 2), strict=True):
        np.testing.assert_allclose(mean, [0.1 * gradient] * 2, rtol=1e-5)
        np.testing.assert_allclose(square, [0.001 * gradient**2] * 2, rtol=1e-5)
    momentum = keras.optimizers.SGD(0.1, momentum=0.9)
    momentum.build(variables)
    (slot,) = keras_adapter.slots_of(momentum, variables[1].value, "momentums")
    assert slot is momentum.momentums[1].value


def test_counter_and_averages_of_an_optimizer():
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, gradient_accumulation_steps=2)
    variable = keras.Variable(np.zeros(2, "float32"))
    optimizer.build([variable])
    for _ in range(3):
        optimizer.apply([tf.ones([2])], [variable])
    assert int(keras_adapter.own_iterations(optimizer)) == 3
    assert int(optimizer.iterations) == 1
    assert len(keras_adapter.ema_averages(optimizer)) == 1


def test_keras_divides_mean_losses_by_the_replicas_that_it_sees():
    """The trap that the compute avoids: inside `strategy.run` a mean loss is a half or a third."""
    model = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    model.compile(loss=LOGITS)
    x, y = np.ones((6, 4), "float32"), np.zeros(6, "int32")
    outside = float(model.compute_loss(x=x, y=y, y_pred=model(x)))
    strategy = strategy_of(3)
    inside = strategy.run(lambda: model.compute_loss(x=x, y=y, y_pred=model(x)))
    values = strategy.experimental_local_results(inside)
    np.testing.assert_allclose([float(v) * 3 for v in values], [outside] * 3, rtol=1e-5)


def test_a_layer_is_built_without_a_value_until_it_is_given_one():
    layer = keras.layers.Embedding(5, 2)
    keras_adapter.build_without_value(layer, layer.build)
    [variable] = layer.trainable_variables
    with keras.StatelessScope():
        pass  # Keras gives a value here to all variables that wait for one.
    assert not keras_adapter.has_value(variable)
    assert tuple(variable.shape) == (5, 2)
    variable.assign(np.ones((5, 2)))
    assert keras_adapter.has_value(variable)
    keras_adapter.give_value(variable, np.full((5, 2), 3.0))
    np.testing.assert_array_equal(layer(np.array([4])), [[3.0, 3.0]])
    keras_adapter.drop_value(variable)
    assert not keras_adapter.has_value(variable)
    layer.set_weights([np.ones((5, 2))])
    np.testing.assert_array_equal(variable.numpy(), np.ones((5, 2)))


def test_slots_in_a_shape_of_their_own_belong_to_a_variable():
    variables = [keras.Variable(np.zeros((3, 2))), keras.Variable(np.zeros(4))]
    optimizer = keras.optimizers.Adafactor()
    with keras_adapter.recorded_slots(optimizer) as recorded:
        optimizer.build(variables)
    owned = [[tuple(s.shape) for ref, s in recorded if ref is v] for v in variables]
    assert owned == [[(3,), (2,), (3, 2)], [(), (), (4,)]]


def test_the_optimizer_that_a_map_chooses_decides_on_weight_decay():
    leaves_out = keras.optimizers.AdamW()
    leaves_out.exclude_from_weight_decay(var_names=["kernel"])
    both = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.AdamW(), {"kernel": leaves_out})
    )
    for name, decays in (("kernel", False), ("bias", True)):
        variable = keras.Variable(np.zeros(2), name=name)
        assert keras_adapter.uses_weight_decay(both, variable) == decays


class Augmented(keras.Model):
    def __init__(self):
        super().__init__()
        self.flip = L.RandomFlip()
        self.flat = L.Flatten()

    def call(self, inputs, training=None):
        return self.flat(self.flip(inputs, training=training))


def augmented_dict():
    inputs = {name: keras.Input((4, 4, 1), name=name) for name in ("left", "right")}
    flipped = {f"{name}_out": L.RandomFlip()(each) for name, each in inputs.items()}
    return keras.Model(inputs, flipped)


@pytest.mark.parametrize(
    "build",
    [lambda: keras.Sequential([keras.Input((4, 4, 1)), L.RandomFlip()]), Augmented, augmented_dict],
    ids=["Sequential", "subclass", "dict"],
)
def test_an_exported_model_computes_what_predict_does(build, tmp_path):
    """Its layers that augment images go on with it where Keras exports it alone."""
    model = build()
    x = np.random.default_rng(0).normal(size=(64, 4, 4, 1)).astype("float32")
    if build is augmented_dict:
        x = {"left": x, "right": -x}
    predicted = model.predict(x, verbose=0)
    with keras_adapter.exported_for_inference(model):
        model.export(tmp_path / "export", format="tf_saved_model", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "export")).serve(x)
    for a, b in zip(tf.nest.flatten(served), tf.nest.flatten(predicted), strict=True):
        np.testing.assert_array_equal(a, b)
    assert "__call__" not in vars(model)
