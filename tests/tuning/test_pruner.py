"""Which trials are hopeless."""

import pytest

from kdist.tuning.objective import Objective
from kdist.tuning.pruner import is_hopeless
from kdist.tuning.trials import COMPLETED, FAILED, Execution, Trial

LOSS = Objective("val_loss", "min")


def trial(name, values, status=COMPLETED):
    epochs = {number: {"val_loss": value} for number, value in enumerate(values, start=1)}
    return Trial(id=name, values={}, epochs=9, status=status, executions={1: Execution("", epochs)})


OTHERS = [trial("a", [5.0, 1.0]), trial("b", [5.0, 2.0]), trial("c", [5.0, 3.0])]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([9.0, 2.1], True),
        ([9.0, 2.0], False),
        ([1.5, 9.0], False),  # Its best so far counts.
        ([6.0], True),
        ([4.0], False),
        ([], False),
        ([9.0, 9.0, 9.0], False),  # Nobody came so far.
    ],
)
def test_worse_than_the_median_at_the_same_epoch(values, expected):
    own = trial("own", values, status="running")
    assert is_hopeless(own, OTHERS, LOSS, min_trials=3, min_epochs=1) is expected


def test_it_needs_others_and_epochs():
    own = trial("own", [9.0], status="running")
    assert not is_hopeless(own, OTHERS, LOSS, min_trials=4, min_epochs=1)
    assert not is_hopeless(own, OTHERS, LOSS, min_trials=3, min_epochs=2)
    failed = [trial("d", [1.0], status=FAILED), trial("e", [1.0], status="running")]
    assert not is_hopeless(own, failed, LOSS, min_trials=1, min_epochs=1)


def test_more_may_be_better():
    accuracy = Objective("val_loss", "max")
    own = trial("own", [4.0], status="running")
    assert is_hopeless(own, OTHERS, accuracy, min_trials=3, min_epochs=1)
