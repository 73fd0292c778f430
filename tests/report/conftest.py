import dataclasses

import pytest

from kdist.training.report.facts import EpochFacts, OpeningFacts, ProgressFacts

OPENING = OpeningFacts(
    mode_line="mirrored: 2 replicas in one process",
    choice_line="strategy=mirrored was asked for",
    tasks=("chief-0",),
    devices=("CPU:0", "CPU:1"),
    num_replicas=2,
    global_batch_size=64,
    per_replica_batch_sizes=(32, 32),
    num_parameters=4810,
    parameter_bytes=19240,
    train_examples=1437,
    validation_examples=360,
    steps_per_epoch=23,
    epochs=5,
    run_dir="outputs/2031-01-02/03-04-05",
)
PROGRESS = ProgressFacts(
    epoch=2,
    epochs=5,
    step=12,
    steps_per_epoch=23,
    metrics={"loss": 0.51234, "accuracy": 0.9},
    steps_per_second=123.4,
    eta_s=61.2,
)


@pytest.fixture
def opening():
    """Make opening facts of a small mirrored run, with changes."""
    return lambda **changes: dataclasses.replace(OPENING, **changes)


@pytest.fixture
def progress():
    """Make progress facts, with changes."""
    return lambda **changes: dataclasses.replace(PROGRESS, **changes)


@pytest.fixture
def epoch():
    """Make the facts of an epoch of 23 batches from its number and metrics."""

    def make(number, *, learning_rate=0.001, **metrics):
        return EpochFacts(
            epoch=number,
            global_step=23 * number,
            batches_seen=23 * number,
            seconds=0.5,
            examples=1437,
            metrics=metrics,
            learning_rate=learning_rate,
        )

    return make
