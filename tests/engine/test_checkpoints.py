"""A checkpoint holds a run's state by variable, whatever buckets, replicas or optimizer."""

import keras
import numpy as np
import pytest

from kdist.training.checkpoints.canonical import capture, restore

from .cases import CASES, ROWS, L, adam, by_path, dense, half_precision, sgd
from .harness import assert_same, numpy_weights, prepare, train


def state_of(outcome):
    return dict(capture(outcome.model, outcome.engine.loop.store)())


def assert_equal(mine, theirs, tolerance=0.0):
    assert sorted(mine) == sorted(theirs)
    for name, value in theirs.items():
        np.testing.assert_allclose(mine[name], value, atol=tolerance, err_msg=name)


def decaying():
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.7))


# Model, data, replicas before and after.
CONTINUED = {
    "adam": (dense(adam), ROWS, 1, 2),
    "average": (dense(lambda: sgd(use_ema=True, ema_momentum=0.8)), ROWS, 3, 1),
    "accumulation": (dense(lambda: adam(gradient_accumulation_steps=3)), ROWS, 1, 1),
    "schedule": (dense(decaying), ROWS, 1, 3),
    "by_variable": (dense(lambda: adam(clipnorm=0.1)), ROWS, 1, 2),
    "two_optimizers": (dense(by_path), ROWS, 2, 1),
    "embedding": (CASES["masked_steps"].build, CASES["masked_steps"].data, 2, 1),
    "mixed_float16": (half_precision, ROWS, 1, 2),
}


@pytest.mark.parametrize("name", CONTINUED)
def test_state_goes_on_in_another_mode_as_if_nothing_had_happened(name):
    build, data, first, then = CONTINUED[name]
    unbroken = train(build, data, replicas=first, epochs=4)
    half = prepare(build, data, replicas=first, epochs=2)
    store = half.engine.loop.store
    half.engine.loop.train(0, 10, steps_per_call=5, on_progress=lambda done: False)
    state = state_of(half)
    assert int(state["optimizer/0"]) > 0 or name == "mixed_float16"
    num_steps = 4 * half.trainer._plan.steps_per_epoch - 10
    other = prepare(build, data, replicas=then)
    restore(other.model, other.engine.loop.store, state.__getitem__)
    assert other.engine.loop.store.num_updates == store.num_updates
    assert_equal(state_of(other), state)
    other.engine.loop.train(10, num_steps, steps_per_call=5, on_progress=lambda done: False)
    for optimizer in other.engine.loop.store.optimizers:
        optimizer.finalize()
    other.engine.loop.store.write_to_model()
    other.weights = numpy_weights(other.model)
    assert_same(other, unbroken, tolerance=2e-3 if name == "mixed_float16" else 2e-6, history=False)


def test_a_snapshot_stays_while_training_goes_on():
    def large():
        model = keras.Sequential([keras.Input((6,)), L.Dense(30000, activation="tanh"), L.Dense(3)])
        model.compile(adam(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    outcome = prepare(large, ROWS, replicas=1)
    loop = outcome.engine.loop
    loop.train(0, 3, steps_per_call=1, on_progress=lambda done: False)
    later, now = capture(outcome.model, loop.store), dict(capture(outcome.model, loop.store)())
    now = {name: value.copy() for name, value in now.items()}
    loop.train(3, 5, steps_per_call=5, on_progress=lambda done: False)
    assert_equal(dict(later()), now)
    assert not np.array_equal(state_of(outcome)["slots/0/0"], now["slots/0/0"])
