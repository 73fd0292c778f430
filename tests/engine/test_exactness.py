"""One device equals plain Keras; several replicas equal one device, whatever the batch sizes."""

import pytest

from .cases import CASES
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
