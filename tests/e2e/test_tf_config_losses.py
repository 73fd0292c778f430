"""Tasks of a foreign cluster that are killed or fail: all others end, and say of whom."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from .kit import Run, cluster_of, leftovers, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(170)]

OWN = Path(__file__).parent / "own" / "my_pkg.py"
LONG = (
    *("data=synthetic", "data.num_examples=2000", "epochs=5000", "hydra.run.dir=run"),
    *("cluster.heartbeat_timeout_s=3",),
)
PS = ("strategy=ps", *LONG)
MULTIWORKER = ("strategy=multiworker", *LONG)


@pytest.fixture
def started(bench):
    """Start a cluster in a folder that holds my_pkg, and wait until it trains."""
    shutil.copy(OWN, bench.folder)

    def start(cluster, *argv):
        commands = bench.start_cluster(cluster, *argv)
        run = Run(bench.folder / "run")
        wait_until(lambda: run.num_events("epoch_ended") >= 2, 90, "2 epochs")
        return commands, run

    return start


def end_of(commands, deadline_s=40):
    for command in commands.values():
        command.wait(deadline_s)
    assert leftovers(*commands.values()) == {}
    return {name: command.code for name, command in commands.items()}


@pytest.mark.parametrize(
    ("counts", "argv", "lost"),
    [
        ({"worker": 3}, MULTIWORKER, "worker-2"),
        ({"chief": 1, "worker": 1, "ps": 2}, PS, "ps-1"),
    ],
    ids=["multiworker", "ps"],
)
def test_a_lost_task_that_is_needed_ends_all_with_75(started, counts, argv, lost):
    commands, run = started(cluster_of(**counts), *argv)
    victim = commands.pop(lost)
    os.kill(victim.process.pid, signal.SIGKILL)
    killed_s = time.monotonic()
    assert set(end_of(commands).values()) == {75}
    assert time.monotonic() - killed_s < 20
    chief = commands["chief-0" if "chief" in counts else "worker-0"]
    assert lost in chief.stderr
    assert all("Traceback" not in command.stderr for command in commands.values())
    assert all(command.stderr.count("Error (") <= 1 for command in commands.values())
    result = run.result
    assert result["status"] == "failed"
    assert lost in result["error"]["message"]


def test_a_worker_that_is_started_again_takes_part_again(bench, started):
    cluster = cluster_of(chief=1, worker=2, ps=1)
    argv = (*PS, "++callbacks.stop._target_=my_pkg.StopsOnFile", "++callbacks.stop.path=stop")
    commands, run = started(cluster, *argv)
    lost = commands.pop("worker-1")
    os.kill(lost.process.pid, signal.SIGKILL)
    commands |= bench.start_cluster(cluster, *argv, tasks=["worker-1"])
    wait_until(lambda: run.num_events("task_rejoined") > 0, 60, "worker-1 is back")
    epochs = run.num_events("epoch_ended")
    wait_until(lambda: run.num_events("epoch_ended") > epochs + 1, 60, "it trains on")
    (bench.folder / "stop").touch()
    assert set(end_of(commands).values()) == {0}
    result, epochs = run.result, run.num_events("epoch_ended")
    assert (result["status"], result["workers_lost"]) == ("completed", 1)
    assert result["batches_seen"] == result["global_step"] == epochs * 25
    assert result["examples_seen"] == epochs * 1600


@pytest.mark.parametrize(
    ("counts", "argv"),
    [({"worker": 2}, MULTIWORKER), ({"chief": 1, "worker": 1, "ps": 1}, PS)],
    ids=["multiworker", "ps"],
)
def test_a_stopped_chief_stops_all(started, counts, argv):
    commands, run = started(cluster_of(**counts), *argv)
    chief = "chief-0" if "chief" in counts else "worker-0"
    commands[chief].process.send_signal(signal.SIGTERM)
    assert set(end_of(commands).values()) == {143}
    assert (run.result["status"], run.result["workers_lost"]) == ("stopped", 0)
    assert "was lost" not in commands[chief].stderr
    assert (run.path / "model.keras").exists()


@pytest.mark.parametrize("counts", [{"worker": 2}, {"chief": 1, "worker": 1, "ps": 1}])
def test_a_callback_that_fails_ends_all(bench, counts):
    shutil.copy(OWN, bench.folder)
    strategy = "ps" if "ps" in counts else "multiworker"
    argv = (f"strategy={strategy}", *LONG, "++callbacks.bad._target_=my_pkg.Fails")
    commands = bench.start_cluster(cluster_of(**counts), *argv)
    codes = end_of(commands, deadline_s=90)
    chief = "chief-0" if "chief" in counts else "worker-0"
    assert codes.pop(chief) == 1
    assert "RuntimeError: the callback broke" in commands[chief].stderr
    assert set(codes.values()) == ({1} if strategy == "multiworker" else {0})
    assert all("Traceback" not in command.stderr for command in commands.values())
    assert Run(bench.folder / "run").result["error"]["task"] == chief


@pytest.mark.parametrize("strategy", ["multiworker", "ps"])
def test_a_task_that_is_told_to_stop_lets_all_stop_and_save(started, strategy):
    counts = {"worker": 2} if strategy == "multiworker" else {"chief": 1, "worker": 1, "ps": 1}
    commands, run = started(cluster_of(**counts), f"strategy={strategy}", *LONG)
    told = "worker-1" if strategy == "multiworker" else "ps-0"
    commands[told].process.send_signal(signal.SIGTERM)
    codes = end_of(commands)
    assert codes["worker-0" if strategy == "multiworker" else "chief-0"] == 143
    assert run.result["status"] == "stopped"
    assert (run.path / "model.keras").exists()
    chief = "worker-0" if strategy == "multiworker" else "chief-0"
    told = commands["worker-1" if strategy == "multiworker" else "ps-0"].stderr
    assert f": ended with {chief}, whose exit code is 143\n" in told
    if strategy == "multiworker":
        assert "worker-1: takes part in the run of worker-0\n" in told


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_chief_that_is_stopped_while_it_waits_takes_the_others_along(bench, name):
    tasks = ["worker-0", "worker-1"]
    commands = bench.start_cluster(cluster_of(worker=3), "strategy=multiworker", tasks=tasks)
    chief = commands["worker-0"]
    wait_until(lambda: "worker-0: waiting for worker-2 (" in chief.stderr, 60, "worker-1 is there")
    chief.process.send_signal(getattr(signal, name))
    code = {"SIGINT": 130, "SIGTERM": 143}[name]
    assert {task: command.wait(10).code for task, command in commands.items()} == dict.fromkeys(
        tasks, code
    )
    assert f"{name}: stopped before training began." in chief.stderr
    assert "worker-0 was stopped before the start." in commands["worker-1"].stderr
