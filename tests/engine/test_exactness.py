"""One device equals plain Keras; several replicas equal one device, whatever the batch sizes."""

import keras
import pytest

from kdist.distribute.step.replica_step import ReplicaStep

from .cases import CASES, ROWS, adam, dense
from .harness import assert_same, fit, train

# What others of the cases hold, too, or is long for what it adds.
SLOW = {"embedding_jit", "masked_sequences", "masked_steps", "subclassed_without_training"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in CASES]
)
def test_replicas_and_single_equal_plain_keras(name):
    case = CASES[name]
    shared = {"batch_size": case.batch_size, "class_weight": case.class_weight}
    reference = fit(case.build, case.data, **shared)
    single = train(case.build, case.data, **shared, **case.single)
    assert_same(single, reference, tolerance=case.tolerance)
    mirrored = train(case.build, case.data, replicas=case.replicas, **shared, **case.mirrored)
    assert_same(mirrored, reference, tolerance=case.tolerance)


@pytest.mark.parametrize("replicas", [1, 2])
def test_calls_of_any_number_of_steps_take_one_trace(replicas, monkeypatch):
    traces, trace = [], ReplicaStep.train
    monkeypatch.setattr(
        ReplicaStep, "train", lambda self, *args: traces.append(self) or trace(self, *args)
    )
    train(dense(adam), ROWS, replicas=replicas, steps_per_execution=3)  # Calls of 3 and of 2.
    assert len(traces) == 1


class RunningScale(keras.layers.Layer):
    """Divides by a running mean that it has just written."""

    def build(self, input_shape):
        options = {"shape": (input_shape[-1],), "initializer": "ones", "trainable": False}
        self.scale = self.add_weight(**options)

    def call(self, x, training=False):
        if training:
            new = keras.ops.mean(keras.ops.abs(x), axis=0)
            self.scale.assign((self.scale.value + new) / 2)
        return x / self.scale


def test_gradients_end_at_state_that_the_step_writes():
    build = dense(before=(RunningScale,))
    assert_same(train(build, ROWS), fit(build, ROWS))
