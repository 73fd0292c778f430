"""An optimizer on buckets does what it does on variables: the same updates, the same slots."""

import keras
import numpy as np
import pytest

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.bucket_plan import plan_buckets
from kdist.distribute.buckets.bucket_values import split_members
from kdist.distribute.buckets.layout import VariableInfo
from kdist.distribute.store.optimizer import (
    build_store_optimizer,
    can_flatten,
    clone_optimizer,
    inner_optimizer,
)
from kdist.distribute.store.replicated_store import to_numpy
from kdist.errors import ConfigError
from kdist.training.slot_mapping import SlotMapping

optimizers = keras.optimizers
AVERAGED = {"use_ema": True, "ema_momentum": 0.7}
FLAT = {
    "sgd": lambda: optimizers.SGD(0.1),
    "nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.5),
    "adam": lambda: optimizers.Adam(0.05),
    "amsgrad": lambda: optimizers.Adam(0.05, amsgrad=True, global_clipnorm=1.0),
    "adamw": lambda: optimizers.AdamW(0.05, weight_decay=0.1),
    "adamax": lambda: optimizers.Adamax(0.05),
    "adadelta": lambda: optimizers.Adadelta(0.5),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.05, momentum=0.5, centered=True),
    "ftrl": lambda: optimizers.Ftrl(0.1, l2_regularization_strength=0.01),
    "lion": lambda: optimizers.Lion(0.01),
    "nadam": lambda: optimizers.Nadam(0.05, **AVERAGED),
    "accumulating": lambda: optimizers.Adam(0.05, gradient_accumulation_steps=2),
    "overwriting": lambda: optimizers.SGD(0.1, ema_overwrite_frequency=2, **AVERAGED),
    "scheduled": lambda: optimizers.Adam(optimizers.schedules.CosineDecay(0.1, 4)),
}
BY_VARIABLE = {
    "clipnorm": lambda: optimizers.Adam(0.05, clipnorm=0.3),
    "adafactor": lambda: optimizers.Adafactor(0.1),
    "lamb": lambda: optimizers.Lamb(0.05),
    "muon": lambda: optimizers.Muon(0.05),
    "schedule_free": lambda: optimizers.ScheduleFreeAdamW(0.05),
    "two": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(
            optimizers.Adam(0.05), {".*kernel": optimizers.SGD(0.1, momentum=0.5)}
        )
    ),
}


def small_model():
    keras.utils.set_random_seed(1)
    layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)]
    return keras.Sequential(layers)


def random_gradients(model, steps=6):
    rng = np.random.default_rng(2)
    return [
        [rng.normal(size=v.shape).astype("float32") for v in model.trainable_variables]
        for _ in range(steps)
    ]


def layout_of(model, optimizer):
    inner = inner_optimizer(optimizer)
    infos = [
        VariableInfo(
            index=index,
            path=v.path,
            shape=tuple(v.shape),
            dtype=v.dtype,
            item_bytes=4,
            has_weight_decay=keras_adapter.uses_weight_decay(inner, v),
        )
        for index, v in enumerate(model.trainable_variables)
    ]
    return plan_buckets(infos, can_flatten=can_flatten(optimizer))


def train_on_buckets(model, optimizer, gradients):
    """Return the store's optimizer and the values by variable after all steps."""
    model.compile(optimizer)
    layout = layout_of(model, optimizer)
    buckets = []
    for bucket in layout.buckets:
        members = [model.trainable_variables[m.variable_index] for m in bucket.members]
        if bucket.is_flat:
            flat = np.concatenate([to_numpy(v).ravel() for v in members])
            buckets.append(keras.Variable(flat))
        else:
            buckets.append(members[0])
    store = build_store_optimizer(optimizer, buckets, layout)
    for step in gradients:
        by_bucket = [
            np.concatenate([step[m.variable_index].ravel() for m in bucket.members])
            if bucket.is_flat
            else step[bucket.members[0].variable_index]
            for bucket in layout.buckets
        ]
        store.apply([keras.ops.convert_to_tensor(g) for g in by_bucket])
    values = dict(
        pair
        for bucket, variable in zip(layout.buckets, buckets, strict=True)
        for pair in split_members(bucket, to_numpy(variable))
    )
    return store, [values[index] for index in range(len(values))]


@pytest.mark.parametrize("name", [*FLAT, *BY_VARIABLE])
def test_updates_and_slots_equal_plain_keras(name):
    make = {**FLAT, **BY_VARIABLE}[name]
    plain = small_model()
    gradients = random_gradients(plain)
    reference = make()
    reference.build(plain.trainable_variables)
    for step in gradients:
        reference.apply([keras.ops.convert_to_tensor(g) for g in step], plain.trainable_variables)

    model = small_model()
    store, values = train_on_buckets(model, make(), gradients)

    assert store.layout.buckets[0].is_flat == (name in FLAT)
    for value, variable in zip(values, plain.trainable_variables, strict=True):
        np.testing.assert_allclose(value, to_numpy(variable), atol=1e-6, err_msg=variable.path)
    expected: dict[str, np.ndarray] = {}
    reference.save_own_variables(expected)
    saved = dict(SlotMapping(model, [store]).values(1))
    assert list(saved) == list(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(saved[key], value, atol=1e-6, err_msg=key)


def test_variables_left_out_of_weight_decay_get_a_bucket_of_their_own():
    make = FLAT["adamw"]
    plain, model = small_model(), small_model()
    gradients = random_gradients(plain)
    made = [make(), make()]
    for optimizer in made:
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    made[0].build(plain.trainable_variables)
    for step in gradients:
        made[0].apply([keras.ops.array(g) for g in step], plain.trainable_variables)

    store, values = train_on_buckets(model, made[1], gradients)

    assert [b.has_weight_decay for b in store.layout.buckets] == [True, False]
    for value, variable in zip(values, plain.trainable_variables, strict=True):
        np.testing.assert_allclose(value, to_numpy(variable), atol=1e-6)


def test_loss_scale_halves_on_overflow_and_skips_the_update():
    model = small_model()
    optimizer = optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=2
    )
    good = random_gradients(model, steps=1)[0]
    scaled = [g * 8 for g in good]
    bad = [np.full_like(g, np.inf) for g in good]
    start = [to_numpy(v) for v in model.trainable_variables]

    store, values = train_on_buckets(model, optimizer, [bad, [g * 4 for g in good], scaled])

    assert float(to_numpy(store.optimizer.dynamic_scale)) == 8.0
    assert store.num_updates == 2
    moved = [s - 0.1 * g - 0.1 * 2 * g for s, g in zip(start, good, strict=True)]
    for value, expected in zip(values, moved, strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-6)


def test_an_optimizer_that_cannot_be_rebuilt_is_refused_by_name():
    class Forgetful(optimizers.SGD):
        def __init__(self, rate, secret):
            super().__init__(rate)

    with pytest.raises(ConfigError, match="Forgetful cannot be rebuilt from its get_config"):
        clone_optimizer(Forgetful(0.1, secret=3))


def test_every_optimizer_of_keras_is_in_this_table():
    known = {type(make()).__name__ for make in (*FLAT.values(), *BY_VARIABLE.values())}
    public = {
        name
        for name in dir(optimizers)
        if isinstance(getattr(optimizers, name), type)
        and issubclass(getattr(optimizers, name), optimizers.Optimizer)
    }
    assert public - known == {"Optimizer", "LossScaleOptimizer"}
