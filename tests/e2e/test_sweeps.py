"""Sweeps of real runs: jobs equal runs of their own, none ends another, and all can go on."""

import csv
import os
import signal
from pathlib import Path

import pytest

from .kit import Run, leftovers, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(170)]

SMALL = ("data=synthetic", "data.num_examples=500", "epochs=2", "steps_per_execution=3")
OWN = """
import os, signal, sys
import keras

def build(how):
    if how == "raise":
        raise ValueError("no such width")
    if how == "exit":
        sys.exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return keras.Sequential([keras.layers.Dense(10, activation="softmax")])
"""
# What differs between two runs of the same configuration.
OF_ONE_RUN = ("seconds", "steps_per_second", "examples_per_second", "run_dir")


def table(folder):
    with (Path(folder) / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def comparable(run):
    found = {key: value for key, value in run.result.items() if key not in OF_ONE_RUN}
    found["best"] = {key: value for key, value in found["best"].items() if key != "checkpoint"}
    return found


@pytest.mark.slow
def test_every_job_equals_a_run_of_its_own(kdist, tmp_path):
    argv = (*SMALL, "cluster.workers=2")
    code, stdout, stderr = kdist(
        "-m", *argv, "strategy=single,multiworker", "seed=3,4", "hydra.sweep.dir=swept"
    )
    assert (code, stderr) == (0, ""), stdout
    assert [row["status"] for row in table(tmp_path / "swept")] == ["completed"] * 4
    for number, strategy, seed in ((1, "single", 4), (2, "multiworker", 3)):
        assert kdist(*argv, f"strategy={strategy}", f"seed={seed}", "hydra.run.dir=alone")[0] == 0
        job, alone = Run(tmp_path / "swept" / str(number)), Run(tmp_path / "alone")
        assert comparable(job) == comparable(alone)
        files = [sorted(each.name for each in run.path.iterdir()) for run in (job, alone)]
        assert files[0] == files[1]
        alone.path.rename(tmp_path / f"alone-{number}")


def test_a_job_that_dies_ends_no_other(kdist, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    code, stdout, stderr = kdist(
        *("-m", *SMALL, "strategy=single", "model._target_=mine.build"),
        *("++model.how=raise,exit,kill,fine", "hydra.sweep.dir=swept"),
    )
    assert code == 1
    rows = table(tmp_path / "swept")
    assert [row["status"] for row in rows] == ["failed", "failed", "failed", "completed"]
    for said in ("no such width", "sys.exit(0) was called", "killed by SIGKILL"):
        assert said in stderr
        assert sum(said in row["error"] for row in rows) == 1
    assert "Sweep: 4 job(s), 1 completed, 3 failed." in stdout
    assert Run(tmp_path / "swept" / "3").result["status"] == "completed"


LONG = ("data=synthetic", "data.num_examples=2000", "epochs=40", "strategy=single", "seed=1,2")


def stopped_sweep(bench, number, whole_group):
    """Stop a sweep while its first job trains; return the command and its folder."""
    command = bench.start("-m", *LONG, "hydra.sweep.dir=swept")
    folder = bench.folder / "swept"
    wait_until(lambda: Run(folder / "0").num_events("checkpoint_saved"), 90, "a checkpoint")
    maps = Path(f"/proc/{command.process.pid}/maps").read_text()
    assert "tensorflow" not in maps and "matplotlib" not in maps
    (os.killpg if whole_group else os.kill)(command.process.pid, number)
    command.wait(60)
    assert leftovers(command) == {}
    return command, folder


def test_ctrl_c_ends_the_running_job_and_the_same_command_goes_on(bench):
    command, folder = stopped_sweep(bench, signal.SIGINT, whole_group=True)
    assert command.code == 130
    assert "1 stopped, 1 not started" in command.stdout
    first = Run(folder / "0").result
    assert first["status"] == "stopped"
    assert not (folder / "1").exists()
    again = bench.run("-m", *LONG, "hydra.sweep.dir=swept")
    assert (again.code, again.stderr) == (0, "")
    result = Run(folder / "0").result
    assert result["resumed_from_step"] == first["batches_seen"] < result["batches_seen"]
    assert [row["status"] for row in table(folder)] == ["completed"] * 2
    assert result["batches_seen"] == Run(folder / "1").result["batches_seen"] == 40 * 25
    assert [int(row["epoch"]) for row in Run(folder / "0").rows] == list(range(1, 41))


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_process_and_goes_on(bench):
    _, folder = stopped_sweep(bench, signal.SIGKILL, whole_group=False)
    again = bench.run("-m", *LONG, "hydra.sweep.dir=swept")
    assert (again.code, again.stderr) == (0, "")
    assert Run(folder / "0").result["resumed_from_step"] > 0
    third = bench.run("-m", *LONG, "hydra.sweep.dir=swept")
    assert third.code == 0
    assert third.stdout.count("was completed before") == 2


def test_jobs_side_by_side(kdist, tmp_path):
    code, stdout, stderr = kdist(
        *("-m", *SMALL, "strategy=ps", "cluster.workers=1", "cluster.ps=1", "seed=1,2"),
        *("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=swept"),
    )
    assert (code, stderr) == (0, ""), stdout
    runs = [Run(tmp_path / "swept" / str(number)) for number in (0, 1)]
    times = [{each["event"]: each["time"] for each in run.events} for run in runs]
    assert times[1]["task_started"] < times[0]["run_ended"]
    assert [run.result["status"] for run in runs] == ["completed"] * 2
    for number, run in enumerate(runs):
        assert f"/swept/{number}" in run.log("chief-0")
        assert f"Job {number} completed in " in stdout
    assert "epoch 1/2" not in stdout  # Which job's would it be?


@pytest.mark.slow
def test_the_whole_table_of_strategies_and_rates(bench):
    command = bench.run(
        *("-m", *SMALL, "model.dropout=0", "+strategy=single,mirrored,multiworker,ps"),
        *("optimizer.learning_rate=1e-2,1e-3", "hydra.sweep.dir=swept"),
        deadline_s=160,
    )
    folder = bench.folder / "swept"
    assert (command.code, command.stderr) == (0, "")
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    results = [Run(folder / str(number)).result for number in range(8)]
    names = ["single", "mirrored", "multiworker", "ps"]
    assert [each["strategy"] for each in results] == [name for name in names for _ in range(2)]
    for synchronous in (results[2:4], results[4:6]):
        for single, other in zip(results[:2], synchronous, strict=True):
            assert other["metrics"]["loss"] == pytest.approx(single["metrics"]["loss"], rel=1e-4)
    assert leftovers(command) == {}


@pytest.mark.slow
def test_optuna_chooses_the_values_of_real_runs(bench):
    command = bench.run(
        *("-m", *SMALL, "strategy=single", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3"),
        *("hydra.sweeper.n_jobs=1", "hydra.sweeper.sampler.seed=1", "hydra.sweep.dir=swept"),
        "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))",
    )
    folder = bench.folder / "swept"
    assert command.code == 0
    values = [Run(folder / str(number)).result["best"]["value"] for number in range(3)]
    assert f"best_value: {min(values)}" in (folder / "optimization_results.yaml").read_text()
