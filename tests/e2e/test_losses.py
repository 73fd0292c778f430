"""Processes that are killed or stopped in mid-run, under the launcher of this machine."""

import os
import shutil
import signal
import time
from pathlib import Path

import keras
import pytest

from .kit import Run, leftovers, wait_for_epoch, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

OWN = Path(__file__).parent / "own" / "my_pkg.py"
LONG = ("data=synthetic", "data.num_examples=2000", "epochs=5000", "hydra.run.dir=run")
PS = ("strategy=ps", "cluster.workers=2", "cluster.ps=2", *LONG)
MULTIWORKER = ("strategy=multiworker", "cluster.workers=2", *LONG)


@pytest.fixture
def started(bench):
    """Start a command, and wait until it trains."""

    def start(*argv):
        command = bench.start(*argv)
        wait_for_epoch(bench.folder / "run", epochs=2)
        return command, Run(bench.folder / "run")

    return start


def test_training_goes_on_without_a_lost_worker_and_it_comes_back(bench, started):
    shutil.copy(OWN, bench.folder)
    command, run = started(
        *PS, "++callbacks.stop._target_=my_pkg.StopsOnFile", "++callbacks.stop.path=stop"
    )
    lost = command.tasks(run.path)["worker-1"]
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: run.num_events("task_rejoined") > 0, 60, "worker-1 is back")
    epochs = run.num_events("epoch_ended")
    wait_until(lambda: run.num_events("epoch_ended") > epochs + 1, 60, "it trains on")
    (bench.folder / "stop").touch()
    command.wait(30)
    result, epochs = run.result, run.num_events("epoch_ended")
    assert (command.code, result["status"], leftovers(command)) == (0, "completed", {})
    assert (result["workers_lost"], result["restarts"]) == (1, 1)
    assert result["batches_seen"] == result["global_step"] == epochs * 25
    assert result["examples_seen"] == epochs * 1600
    assert {int(row["examples"]) for row in run.rows} == {1600}
    assert all(0 <= float(row["accuracy"]) <= 1 for row in run.rows)
    assert [run.num_events(f"task_{what}") for what in ("lost", "restarted", "rejoined")] == [1] * 3
    assert command.stderr.count("\n") == 1
    assert "worker-1 was killed by SIGKILL" in command.stderr
    assert command.tasks(run.path)["worker-1"] != lost


@pytest.mark.parametrize(
    ("argv", "task"),
    [
        (MULTIWORKER, "worker-1"),
        pytest.param(MULTIWORKER, "worker-0", marks=pytest.mark.slow),
        (PS, "ps-1"),
        pytest.param(PS, "chief-0", marks=pytest.mark.slow),
    ],
)
def test_without_restarts_a_lost_task_ends_the_run_and_is_named(started, argv, task):
    command, run = started(*argv, "cluster.max_restarts=0")
    os.kill(command.tasks(run.path)[task], signal.SIGKILL)
    killed_s = time.monotonic()
    command.wait(60)
    assert time.monotonic() - killed_s < 30
    assert (command.code, leftovers(command)) == (1, {})
    assert command.stderr.count("Error (") == 1
    assert f"Error ({task}): {task} was killed by SIGKILL" in command.stderr
    assert "Traceback" not in command.stderr
    result = run.result
    assert (result["status"], result["error"]["task"]) == ("failed", task)
    assert "SIGKILL" in result["error"]["message"]


@pytest.mark.parametrize(
    ("argv", "name", "code"),
    [(PS, "SIGINT", 130), (MULTIWORKER, "SIGTERM", 143)],
    ids=["ps", "multiworker"],
)
def test_a_stopped_run_saves_what_it_has(started, argv, name, code):
    command, run = started(*argv)
    command.process.send_signal(getattr(signal, name))
    command.wait(40)
    assert (command.code, leftovers(command)) == (code, {})
    result = run.result
    assert (result["status"], result["error"]) == ("stopped", None)
    assert (result["workers_lost"], run.num_events("task_lost")) == (0, 0)
    assert result["batches_seen"] == result["global_step"] > 50
    model = keras.saving.load_model(run.path / "model.keras")
    assert int(model.optimizer.iterations) == result["global_step"]
    assert len(command.stderr.splitlines()) == 1
    assert "Traceback" not in "".join(log.read_text() for log in run.path.glob("logs/*.log"))


def test_a_killed_launcher_leaves_no_process(started):
    command, run = started(*PS)
    tasks = command.tasks(run.path)
    assert len(tasks) == 5
    command.process.kill()
    command.wait(10)
    assert leftovers(command, within_s=10) == {}
