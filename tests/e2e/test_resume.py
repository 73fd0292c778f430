"""Runs that are killed with SIGKILL, or change their mode, go on as the runs they were."""

import os
import shutil
import signal
from pathlib import Path

import keras
import numpy as np
import pytest

from .kit import Run, leftovers, marked, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

OWN = Path(__file__).parent / "own"
SETTINGS = (
    "model._target_=resume_pkg.build",
    "data._target_=resume_pkg.load",
    "data.batch_size=16",
    "checkpoint.every_steps=1",
    "checkpoint.every_epochs=null",
)
STEPS_PER_EPOCH = 7
MODES = {
    "single": ("strategy=single",),
    "mirrored": ("strategy=mirrored", "strategy.devices=2"),
    "multiworker": ("strategy=multiworker", "cluster.workers=2"),
    "ps_async": ("strategy=ps", "cluster.workers=2", "cluster.ps=2"),
    "ps_sync": ("strategy=ps", "strategy.update=sync", "cluster.workers=2", "cluster.ps=1"),
    "ps_between": (
        "strategy=ps",
        "strategy.replication=between_graph",
        "cluster.workers=2",
        "cluster.ps=1",
    ),
    "ps_between_sync": (
        "strategy=ps",
        "strategy.replication=between_graph",
        "strategy.update=sync",
        "cluster.workers=2",
        "cluster.ps=1",
    ),
}


def weights(run):
    return keras.saving.load_model(run.path / "model.keras", compile=False).get_weights()


def arguments(mode, epochs, run_dir):
    return (*SETTINGS, *MODES[mode], f"epochs={epochs}", f"hydra.run.dir={run_dir}")


@pytest.fixture(scope="module")
def unbroken(shared):
    shutil.copy(OWN / "resume_pkg.py", shared.folder)
    command = shared.run(*arguments("single", 4, "unbroken"))
    assert command.code == 0, command.evidence()
    return Run(shared.folder / "unbroken")


def kill_at(bench, mode, batch, run_dir):
    """Start a run and kill all of its processes while it holds after a batch."""
    note = bench.folder / "held"
    command = bench.start(
        *arguments(mode, 4, run_dir),
        "++callbacks.hold._target_=resume_pkg.Hold",
        f"++callbacks.hold.batch={batch}",
        f"++callbacks.hold.note={note}",
    )
    wait_until(lambda: note.exists() or command.process.poll() is not None, 120, "the batch")
    assert note.exists(), command.evidence()
    for pid in marked(command.mark):
        os.kill(pid, signal.SIGKILL)
    command.wait(20)


@pytest.mark.parametrize(
    ("mode", "batch"),
    [pytest.param("single", 17, marks=pytest.mark.slow), ("multiworker", 12)],
)
def test_a_killed_run_equals_the_unbroken_one(mode, batch, unbroken, bench):
    shutil.copy(OWN / "resume_pkg.py", bench.folder)
    kill_at(bench, mode, batch, "run")
    again = bench.run(*arguments(mode, 4, "run"), deadline_s=120)
    run = Run(bench.folder / "run")
    assert again.code == 0, again.evidence()
    assert run.result["resumed_from_step"] in (batch - 2, batch - 1)
    for key in ("batches_seen", "global_step", "examples_seen"):
        assert run.result[key] == unbroken.result[key]
    for mine, theirs in zip(weights(run), weights(unbroken), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    assert [row["epoch"] for row in run.rows] == ["1", "2", "3", "4"]
    for row, wanted in zip(run.rows, unbroken.rows, strict=True):
        assert float(row["val_loss"]) == pytest.approx(float(wanted["val_loss"]), abs=1e-5)
    assert not leftovers(again)
    assert not list((run.path / "checkpoints").glob(".*"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", ["single", "ps_async", "ps_between"])
def test_every_mode_goes_on_with_every_other(first, bench):
    shutil.copy(OWN / "resume_pkg.py", bench.folder)
    order = [first, *(mode for mode in MODES if mode != first), first]
    for index, mode in enumerate(order, start=1):
        command = bench.run(*arguments(mode, index, "run"), deadline_s=150)
        assert command.code == 0, command.evidence()
        run = Run(bench.folder / "run")
        result = run.result
        assert result["batches_seen"] == result["global_step"] == index * STEPS_PER_EPOCH, mode
        assert result["resumed_from_step"] == ((index - 1) * STEPS_PER_EPOCH or None), mode
        assert len(run.rows) == index
    assert result["metrics"]["val_accuracy"] > 0.6
