"""With one worker parameter servers train exactly what plain Keras `fit` trains on one device."""

from collections.abc import Callable

import keras
import numpy as np
import pytest

from kdist.training.saving import save_model
from tests.engine.harness import assert_same, fit, labelled_rows, numpy_weights

LOSS = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


def dense(optimizer: Callable[[], keras.optimizers.Optimizer], *, l2: float = 0.0):
    """Four variables, so that both servers hold some."""

    def build():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(5, "tanh", kernel_regularizer=keras.regularizers.L2(l2)),
                keras.layers.Dense(3, "softmax"),
            ]
        )
        model.compile(optimizer(), **LOSS)
        return model

    return build


def decay_without_bias():
    optimizer = keras.optimizers.AdamW(0.02, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.25),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam_clipvalue": lambda: keras.optimizers.Adam(0.02, clipvalue=0.01),
    "momentum_clipnorm": lambda: keras.optimizers.SGD(0.25, momentum=0.9, clipnorm=0.05),
    "adam_global_clipnorm": lambda: keras.optimizers.Adam(0.02, global_clipnorm=0.05),
    "adamw_without_bias": decay_without_bias,
    "rmsprop_schedule": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7), momentum=0.5
    ),
    "adam_accumulation": lambda: keras.optimizers.Adam(0.02, gradient_accumulation_steps=3),
    "sgd_ema": lambda: keras.optimizers.SGD(
        0.25, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4
    ),
    "lamb": lambda: keras.optimizers.Lamb(0.02),
    "scaled_global_clipnorm": lambda: keras.optimizers.SGD(
        0.25, momentum=0.9, global_clipnorm=0.05, loss_scale_factor=64.0
    ),
    "two": lambda: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.Adam(0.02), {".*kernel": keras.optimizers.SGD(0.25, momentum=0.9)}
        )
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(cluster, name):
    build = dense(OPTIMIZERS[name], l2=0.01)
    data = {"train": labelled_rows()}
    run = cluster.train(build, data, steps_per_execution=4)
    assert_same(run, fit(build, data))
    assert run.loop.store.num_updates == (10 if "accumulation" not in name else 3)


def test_an_optimizer_whose_slots_begin_as_copies_of_the_weights(cluster):
    """Plain `fit` loses the copies, unless the optimizer was built before."""
    build = dense(lambda: keras.optimizers.ScheduleFreeAdamW(0.02))

    def built():
        model = build()
        model.optimizer.build(model.trainable_variables)
        return model

    data = {"train": labelled_rows()}
    assert_same(cluster.train(build, data), fit(built, data))


def test_one_server_clips_like_two(cluster):
    build = dense(OPTIMIZERS["adam_global_clipnorm"])
    data = {"train": labelled_rows()}
    one, two = (cluster.train(build, data, ps=ps) for ps in (1, 2))
    assert_same(one, two)


@pytest.mark.parametrize("placement", ["greedy_bytes", "round_robin"])
def test_placements(cluster, placement):
    build = dense(OPTIMIZERS["adam_global_clipnorm"])
    data = {"train": labelled_rows()}
    run = cluster.train(build, data, strategy={"placement": placement})
    assert {bucket.server_index for bucket in run.engine.layout.buckets} == {0, 1}
    assert_same(run, fit(build, data))


@pytest.mark.parametrize("name", ["adam_clipvalue", "adam_global_clipnorm", "sgd_ema"])
def test_variables_in_pieces(cluster, name, tmp_path):
    """Kernels of several rows lie on both servers; values and slots come back whole."""
    build = dense(OPTIMIZERS[name], l2=0.01)
    x, y = labelled_rows()
    data = {"train": (x, y), "validation": (x[:10], y[:10])}
    run = cluster.train(build, data, strategy={"partition_bytes": 50})
    pieces = [b.members[0] for b in run.engine.layout.buckets if b.members[0].rows is not None]
    assert {piece.variable_index for piece in pieces} == {0, 2}
    reference = fit(build, data)
    assert_same(run, reference)
    save_model(run.model, run.loop.store, run.bridge.view, tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").optimizer.variables
    for mine, theirs in zip(loaded, reference.model.optimizer.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=1e-5, err_msg=theirs.path)


def test_ema_at_the_end(cluster):
    """Keras overwrites the weights with their averages when training ends, and so do servers."""
    build = dense(lambda: keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.7))
    x, y = labelled_rows()
    data = {"train": (x, y), "validation": (x[:10], y[:10])}
    run = cluster.train(build, data)
    reference = fit(build, data)
    assert_same(run, reference)
    expected = reference.model.evaluate(x[:10], y[:10], verbose=0, return_dict=True)
    final = {key.removeprefix("val_"): value for key, value in run.state.final_metrics.items()}
    assert final == pytest.approx(expected, abs=1e-5)


def test_batch_normalization_and_weights(cluster):
    """Moving statistics, class weights times sample weights, and validation in the history."""

    def build():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(5, use_bias=False),
                keras.layers.BatchNormalization(momentum=0.8),
                keras.layers.Dense(3, "softmax"),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.25, momentum=0.5), weighted_metrics=["accuracy"], **LOSS
        )
        return model

    x, y = labelled_rows()
    weight = np.linspace(0.5, 2.0, len(x)).astype("float32")
    data = {"train": (x, y, weight), "validation": (x[:9], y[:9], weight[:9])}
    class_weight = {0: 1.0, 1: 3.0, 2: 0.5}
    run = cluster.train(build, data, class_weight=class_weight)
    product = weight * np.array([class_weight[label] for label in y], "float32")
    assert_same(run, fit(build, {**data, "train": (x, y, product)}))


def test_masks_and_lstm(cluster):
    """A mask changes the loss's denominator; LSTM and Embedding run on the workers."""

    def build():
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                keras.layers.Embedding(12, 4, mask_zero=True),
                keras.layers.LSTM(4, return_sequences=True),
                keras.layers.Dense(3, "softmax"),
            ]
        )
        # Not Adam: with repeated ids plain Keras squares the parts of an embedding's gradient.
        model.compile(
            keras.optimizers.SGD(0.5, momentum=0.9), weighted_metrics=["accuracy"], **LOSS
        )
        return model

    rng = np.random.default_rng(3)
    x = rng.integers(1, 12, size=(21, 5)).astype("int32")
    x[np.arange(5)[None, :] >= rng.integers(2, 6, size=(21, 1))] = 0
    data = {"train": (x, rng.integers(0, 3, size=(21, 5)).astype("int32"))}
    assert_same(cluster.train(build, data), fit(build, data))


def test_attention_with_dicts(cluster):
    """Several inputs and outputs by name, MultiHeadAttention, loss weights, `add_loss`."""

    class Penalty(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
            return inputs

    def build():
        a, b = keras.Input((4, 3), name="a"), keras.Input((2,), name="b")
        attended = keras.layers.MultiHeadAttention(2, 3)(a, a)
        joined = keras.layers.Concatenate()([keras.layers.Flatten()(attended), b])
        hidden = Penalty()(keras.layers.Dense(4, "tanh")(joined))
        outputs = {
            "kind": keras.layers.Dense(3, "softmax", name="kind")(hidden),
            "size": keras.layers.Dense(1, name="size")(hidden),
        }
        model = keras.Model({"a": a, "b": b}, outputs)
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9),
            loss={"kind": "sparse_categorical_crossentropy", "size": "mse"},
            loss_weights={"kind": 1.0, "size": 0.5},
            metrics={"kind": ["accuracy"], "size": ["mae"]},
        )
        return model

    rng = np.random.default_rng(5)
    x = {
        "a": rng.normal(size=(19, 4, 3)).astype("float32"),
        "b": rng.normal(size=(19, 2)).astype("float32"),
    }
    y = {
        "kind": rng.integers(0, 3, size=19).astype("int32"),
        "size": rng.normal(size=(19, 1)).astype("float32"),
    }
    data = {"train": (x, y), "validation": (x, y)}
    assert_same(cluster.train(build, data), fit(build, data))


def test_subclassed_model(cluster):
    """`call(self, x)` without `training`, and a layer that is used twice."""

    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.shared = keras.layers.Dense(6, "tanh")
            self.out = keras.layers.Dense(3, "softmax")

        def call(self, x):
            return self.out(self.shared(self.shared(x)))

    def build():
        model = Plain()
        model.compile(keras.optimizers.Adam(0.02), **LOSS)
        return model

    data = {"train": labelled_rows()}
    assert_same(cluster.train(build, data), fit(build, data))


def test_loss_scaling_of_mixed_float16(cluster):
    """Overflows skip the update and halve the scale on both servers; the scale grows back."""
    keras.config.set_dtype_policy("mixed_float16")

    def build():
        inner = keras.optimizers.SGD(0.125, momentum=0.5)
        return dense(
            lambda: keras.optimizers.LossScaleOptimizer(
                inner, initial_scale=2.0**22, dynamic_growth_steps=3
            )
        )()

    data = {"train": labelled_rows()}
    run = cluster.train(build, data, epochs=4)
    reference = fit(build, data, epochs=4)
    assert_same(run, reference, tolerance=2e-3)
    scale = float(reference.model.optimizer.dynamic_scale.numpy())
    assert [float(o.optimizer.dynamic_scale.numpy()) for o in run.loop.store.optimizers] == [
        scale
    ] * 2
    updates = int(reference.model.optimizer.iterations.numpy())
    assert 0 < updates < 20
    assert run.loop.store.num_updates == updates


def test_saved_file_carries_slots(cluster, tmp_path):
    """`model.keras` written from two servers opens with the optimizer state of plain Keras."""
    build = dense(lambda: keras.optimizers.Adam(0.02, amsgrad=True))
    data = {"train": labelled_rows()}
    run = cluster.train(build, data)
    save_model(run.model, run.loop.store, run.bridge.view, tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    reference = fit(build, data).model
    assert len(loaded.optimizer.variables) == len(reference.optimizer.variables)
    for mine, theirs in zip(loaded.optimizer.variables, reference.optimizer.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=1e-5, err_msg=theirs.path)
    for mine, theirs in zip(numpy_weights(loaded), numpy_weights(reference), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
