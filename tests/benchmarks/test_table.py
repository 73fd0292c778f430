"""Ratios, verdicts and the printed table."""

import json

import pytest

from benchmarks import table
from benchmarks.cases import KDIST, TF_KERAS, Case, plan_cases, target_ratio
from benchmarks.memory import memory_ratio
from benchmarks.sides import Measurement, kdist_arguments
from benchmarks.startup import StartUp


def measured(side, steps, *speeds, workload="dense", strategy="ps", **fields):
    case = Case(workload=workload, strategy=strategy, steps_per_execution=steps)
    return Measurement(case=case, side=side, steps_per_second=speeds, **fields)


SITTING = [
    measured("tf_keras", 1, 20.0, 30.0, 40.0),
    measured("kdist", 1, 100.0, 110.0, 120.0),
    measured("tf_keras", 10, 10.0),
    measured("kdist", 10, 300.0),
    measured("keras", 10, strategy="mirrored", error="InvalidArgumentError: no"),
    measured("tf_keras", 10, 100.0, strategy="mirrored"),
    measured("kdist", 10, 150.0, strategy="mirrored"),
]


def test_each_side_counts_at_its_better_steps_per_execution():
    comparison = table.compare(SITTING)[0]
    assert (comparison.peer, comparison.other.best, comparison.kdist.best) == (
        "tf_keras",
        30.0,
        300.0,
    )
    assert comparison.ratio == 10.0


def test_rounds_are_pooled():
    rounds = [*SITTING[:2], measured("tf_keras", 1, 50.0, 60.0)]
    assert table.compare(rounds)[0].other.by_steps == {1: 40.0}


def test_table():
    assert table.render_comparisons(table.compare(SITTING)).splitlines() == [
        "model  strategy  peer      peer x1  peer x10  kdist x1  kdist x10  ratio  target",
        "-----  --------  --------  -------  --------  --------  ---------  -----  ------"
        "  ----------",
        "dense  ps        tf_keras     30.0      10.0     110.0      300.0  10.00    6.00  ok",
        "dense  mirrored  keras           -     fails         -      150.0      -    1.00"
        "  peer fails",
        "dense  mirrored  tf_keras        -     100.0         -      150.0   1.50    1.70  BELOW",
    ]


def test_a_failure_of_kdist_is_no_success():
    sitting = [measured("tf_keras", 1, 20.0), measured("kdist", 1, error="ConfigError: no")]
    assert table.compare(sitting)[0].verdict == "kdist failed"
    assert table.failures(sitting) == ("kdist, dense ps steps_per_execution=1: ConfigError: no",)


def test_json_holds_what_the_table_shows():
    comparison = table.compare(SITTING)[0]
    written = json.loads(json.dumps(table.comparison_json(comparison), allow_nan=False))
    assert written == {
        "workload": "dense",
        "strategy": "ps",
        "peer": "tf_keras",
        "kdist_steps_per_second": {"1": 110.0, "10": 300.0},
        "peer_steps_per_second": {"1": 30.0, "10": 10.0},
        "ratio": 10.0,
        "target": 6.0,
        "verdict": "ok",
    }
    assert json.loads(json.dumps(table.measurement_json(SITTING[4])))["error"].endswith("no")


def test_memory_compares_the_worst_with_the_best():
    sitting = [
        measured("keras", 1, 1.0, peak_bytes=200),
        measured("keras", 1, 1.0, peak_bytes=100),
        measured("kdist", 1, 1.0, peak_bytes=110),
        measured("kdist", 1, 1.0, peak_bytes=120),
    ]
    assert memory_ratio(sitting) == 1.2
    assert memory_ratio(sitting[:2]) is None


@pytest.mark.parametrize(
    ("seconds", "limit_s", "verdict"),
    [((0.5, 0.7, 9.0), 1.0, "ok"), ((1.5,), 1.0, "ABOVE"), ((2.0,), None, ""), ((), 1.0, "failed")],
)
def test_startup_verdict(seconds, limit_s, verdict):
    assert StartUp(name="x", seconds=seconds, limit_s=limit_s).verdict == verdict


@pytest.mark.parametrize(
    ("case", "target"),
    [
        (("dense", "single", "keras"), 1.3),
        (("dense", "mirrored", "tf_keras"), 1.7),
        (("dense", "multiworker", "tf_keras"), 2.2),
        (("dense", "ps", "tf_keras"), 6.0),
        (("dense", "single", "tf_keras"), 1.0),
        (("lstm", "ps", "tf_keras"), 1.0),
        (("large", "single", "keras"), 0.95),
    ],
)
def test_targets(case, target):
    assert target_ratio(*case) == target


def test_every_epoch_is_whole_executions():
    for case in plan_cases(("dense", "cnn", "lstm", "embedding", "large"), ("single", "ps")):
        for side in (KDIST, TF_KERAS):
            steps = case.num_steps(side)
            assert steps % case.steps_per_execution == 0 and steps > 0


def test_a_worker_always_gets_64_examples():
    sizes = {case.strategy: case.batch_size for case in plan_cases(["dense"], ("mirrored", "ps"))}
    assert sizes == {"mirrored": 128, "ps": 64}


def test_command_line_of_kdist():
    case = Case(workload="cnn", strategy="ps", steps_per_execution=10)
    assert kdist_arguments(case, "/tmp/run") == [
        "+strategy=ps",
        "cluster.workers=2",
        "cluster.ps=2",
        "model._target_=benchmarks.kdist_targets.build_model",
        "++model.workload=cnn",
        "data._target_=benchmarks.kdist_targets.make_data",
        "++data.workload=cnn",
        "data.batch_size=64",
        "epochs=3",
        "steps_per_epoch=1000",
        "steps_per_execution=10",
        "hydra.run.dir=/tmp/run",
    ]
