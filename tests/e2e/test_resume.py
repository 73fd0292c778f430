"""Runs that are killed with SIGKILL, or change their mode, go on as the runs they were."""

import contextlib
import os
import shutil
import signal
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.training.checkpoints.format import read_checkpoint

from .kit import Run, leftovers, marked, wait_until
from .own import resume_pkg

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

BOTH_SYNC = ("ps_sync", "ps_between_sync")


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


def hold_at(bench, mode, batch, run_dir):
    """Start a run; return its command once it holds after a batch."""
    note = bench.folder / "held"
    command = bench.start(
        *arguments(mode, 4, run_dir),
        "++callbacks.hold._target_=resume_pkg.Hold",
        f"++callbacks.hold.batch={batch}",
        f"++callbacks.hold.note={note}",
    )
    wait_until(lambda: note.exists() or command.process.poll() is not None, 120, "the batch")
    assert note.exists(), command.evidence()
    return command


def kill_all(command):
    """End every process of a run with SIGKILL."""
    for pid in marked(command.mark):
        with contextlib.suppress(ProcessLookupError):  # Tasks notice that the launcher is gone.
            os.kill(pid, signal.SIGKILL)
    command.wait(20)


def last_checkpoint(run):
    """Return the step of the newest checkpoint that was written."""
    return max((e["step"] for e in run.events if e["event"] == "checkpoint_saved"), default=0)


@pytest.mark.parametrize(
    ("mode", "batch", "killed"),  # An epoch has seven batches: all are killed inside of one.
    [
        pytest.param("single", 17, "all", marks=pytest.mark.slow),
        ("multiworker", 12, "all"),
        ("ps_sync", 9, "chief-0"),
        ("ps_between_sync", 11, "worker-0"),
        *(pytest.param(mode, 11, "all", marks=pytest.mark.slow) for mode in BOTH_SYNC),
    ],
)
def test_a_killed_run_equals_the_unbroken_one(mode, batch, killed, unbroken, bench):
    shutil.copy(OWN / "resume_pkg.py", bench.folder)
    run = Run(bench.folder / "run")
    again = hold_at(bench, mode, batch, "run")
    if killed == "all":
        kill_all(again)
        again = bench.start(*arguments(mode, 4, "run"))
    else:  # The launcher starts again by itself.
        os.kill(again.tasks(run.path)[killed], signal.SIGKILL)
    again.wait(120)
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


@pytest.mark.parametrize("mode", [pytest.param("ps_async", marks=pytest.mark.slow), "ps_between"])
def test_a_run_that_is_killed_while_workers_push_loses_no_update(mode, bench):
    shutil.copy(OWN / "resume_pkg.py", bench.folder)
    run, epochs = Run(bench.folder / "run"), 30
    settings = (*arguments(mode, epochs, "run"), "checkpoint.every_steps=5")
    killed = bench.start(*settings)
    wait_until(lambda: last_checkpoint(run) >= 20 or killed.process.poll() is not None, 120, "it")
    kill_all(killed)
    assert not (run.path / "result.json").exists(), "it had ended before the kill"
    again = bench.run(*settings, deadline_s=120)
    assert again.code == 0, again.evidence()
    result = run.result
    assert result["resumed_from_step"] >= 15
    assert result["batches_seen"] == result["global_step"] == epochs * STEPS_PER_EPOCH
    assert result["examples_seen"] == epochs * 100
    assert [int(row["epoch"]) for row in run.rows] == list(range(1, epochs + 1))
    assert {int(row["examples"]) for row in run.rows} == {100}
    assert not leftovers(again)


# The five that write a checkpoint for each other, in the middle of the second epoch.
FIVE = ("single", "mirrored", "multiworker", "ps_async", "ps_between")
CUT = 10


def after_one_more_step(saved):
    """Return weights and Adam's slots of a checkpoint after one more step, worked out by hand."""
    names = [f"variables/{index}" for index in range(4)]
    weights, firsts, seconds = (
        [saved.read(name) for name in names],
        [saved.read(f"slots/{index}/0") for index in range(4)],
        [saved.read(f"slots/{index}/1") for index in range(4)],
    )
    model = resume_pkg.build()
    model.set_weights(weights)
    x, y = resume_pkg.load()["train"]
    rows = slice(CUT % STEPS_PER_EPOCH * 16, (CUT % STEPS_PER_EPOCH + 1) * 16)
    with tf.GradientTape() as tape:
        loss = model.compute_loss(y=y[rows], y_pred=model(x[rows], training=True))
    count = CUT + 1
    rate = float(resume_pkg.schedule()(CUT)) * np.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    found = {"optimizer/0": count}
    gradients = [np.asarray(each) for each in tape.gradient(loss, model.trainable_variables)]
    for index, gradient in enumerate(gradients):
        first = 0.9 * firsts[index] + 0.1 * gradient
        second = 0.999 * seconds[index] + 0.001 * gradient**2
        found[f"slots/{index}/0"], found[f"slots/{index}/1"] = first, second
        found[names[index]] = weights[index] - rate * first / (np.sqrt(second) + 1e-7)
    return found


def check_each_goes_on(first, others, bench):
    """Let a mode write a checkpoint inside of an epoch, and others take one step from there."""
    shutil.copy(OWN / "resume_pkg.py", bench.folder)
    folder = bench.folder / "first"
    in_order = ("data.shuffle=false",)
    command = bench.run(*arguments(first, 4, folder), *in_order, f"max_steps={CUT}", deadline_s=120)
    assert command.code == 0, command.evidence()
    checkpoint = folder / "checkpoints" / f"step-{CUT:09d}"
    expected = after_one_more_step(read_checkpoint(str(checkpoint)))
    for mode in others:
        command = bench.run(
            *(*arguments(mode, 4, mode), *in_order, f"max_steps={CUT + 1}"),
            f"resume={checkpoint}",
            deadline_s=120,
        )
        assert command.code == 0, command.evidence()
        run = Run(bench.folder / mode)
        assert run.result["resumed_from_step"] == CUT
        assert run.result["batches_seen"] == run.result["global_step"] == CUT + 1
        assert run.result["examples_seen"] == 100 + 4 * 16
        assert [row["global_step"] for row in run.rows] == [str(STEPS_PER_EPOCH), str(CUT + 1)]
        left = read_checkpoint(str(run.path / "checkpoints" / f"step-{CUT + 1:09d}"))
        for name, value in expected.items():
            np.testing.assert_allclose(
                left.read(name), value, atol=1e-6, err_msg=f"{first} to {mode}: {name}"
            )


@pytest.mark.slow
def test_one_cluster_goes_on_with_what_another_wrote(bench):
    check_each_goes_on("multiworker", ["ps_between"], bench)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", FIVE)
def test_every_mode_goes_on_with_what_every_mode_wrote(first, bench):
    check_each_goes_on(first, FIVE, bench)
