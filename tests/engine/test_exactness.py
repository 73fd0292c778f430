"""One device equals plain Keras; several replicas equal one device, whatever the batch sizes."""

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
