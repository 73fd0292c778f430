"""Runs that lose tasks, with tasks that only act: who is started again, and who is told what."""

import json
import os
import signal

import pytest

from kdist.cluster.task import TaskType
from kdist.launch.restarts import RestartPolicy
from kdist.launch.timing import Timing

from .conftest import QUICK, is_alive, lines_of, wait_until

READY = [["make_folder"], ["send", "task_ready", {}]]
TOGETHER = RestartPolicy(max_restarts=2)
ALONE = RestartPolicy(alone=frozenset({TaskType.WORKER}), max_restarts=2)


def events_of(done, *names):
    return [
        {key: value for key, value in event.items() if key not in ("time", "pid")}
        for event in done.events()
        if event["event"] in names
    ]


@pytest.mark.parametrize("how", ["die_the_first_time", "freeze_the_first_time"])
def test_all_start_again_after_a_loss(launch, tmp_path, how):
    pids, died = tmp_path / "pids", tmp_path / "died"
    note = ["append", str(pids), "{pid} {task} {address}"]
    steps = {
        "worker-0": [*READY, note, ["wait_for", str(pids), 4], ["show", "request.attempt"]],
        "worker-1": [note, ["wait_for", str(pids), 2], [how, str(died)]],
    }
    timing = Timing(**{**QUICK.__dict__, "heartbeat_timeout_s": 2.0})
    config = {"cluster": {"heartbeat_timeout_s": 2.0}}
    counts = {"chief": 0, "worker": 2}
    done = launch(steps, counts=counts, restarts=TOGETHER, timing=timing, config=config)
    assert (done.run.exit_code, done.stdout) == (0, "1\n")
    assert "all start again from the last checkpoint (1 of 2 restarts)." in done.stderr
    assert ("no sign of life" in done.stderr) == (how == "freeze_the_first_time")
    pid, tasks, addresses = zip(*(line.split() for line in lines_of(pids)), strict=True)
    assert sorted(tasks) == ["worker-0", "worker-0", "worker-1", "worker-1"]
    assert len(set(pid)) == len(set(addresses)) == 4
    [lost] = events_of(done, "task_lost")
    assert (lost["task"], lost["exit_code"]) == ("worker-1", -signal.SIGKILL)
    assert events_of(done, "run_restarted", "task_restarted") == [
        {"event": "run_restarted", "attempt": 1, "lost": "worker-1"},
        {"event": "task_restarted", "task": "worker-0", "attempt": 1},
        {"event": "task_restarted", "task": "worker-1", "attempt": 1},
    ]


def test_all_start_again_after_the_loss_of_the_fork_server(launch, tmp_path):
    pids, died = tmp_path / "pids", tmp_path / "died"
    note = ["append", str(pids), "{pid}"]
    steps = {
        "chief-0": [*READY, note, ["wait_for", str(pids), 4], ["show", "request.attempt"]],
        "ps-0": [note, ["wait_for", str(pids), 2], ["kill_forkserver_the_first_time", str(died)]],
    }
    done = launch(steps, counts={"ps": 1}, restarts=TOGETHER)
    assert (done.run.exit_code, done.stdout) == (0, "1\n")
    assert "all start again from the last checkpoint (1 of 2 restarts)." in done.stderr
    first = lines_of(pids)[:2]
    wait_until(lambda: not any(is_alive(pid) for pid in first))


@pytest.mark.parametrize("restarts", [TOGETHER, ALONE], ids=["together", "alone"])
def test_the_chief_tells_the_same_losses_as_the_result(launch, tmp_path, restarts):
    died, again = str(tmp_path / "died"), str(tmp_path / "again")
    over, let = str(tmp_path / "over"), str(tmp_path / "let")
    chief = [*READY, ["append", let, "x"], ["wait_for", over], ["show_story"]]
    completed = {"status": "completed", "error": None, "restarts": 0, "workers_lost": 0}
    steps = {
        "chief-0": [*chief, ["write_result", completed]],
        "worker-0": [
            ["send", "task_ready", {}],
            ["wait_for", let],
            ["die_the_first_time", died],
            ["die_the_first_time", again],
            ["append", over, "x"],
        ],
    }
    done = launch(steps, counts={"worker": 1}, restarts=restarts)
    assert (done.run.exit_code, done.stdout) == (0, "2 2 None\n")
    assert (done.result()["restarts"], done.result()["workers_lost"]) == (2, 2)


def test_a_chief_that_is_ended_for_the_failure_of_another_task_hears_of_it(launch, tmp_path):
    """It gets the same signal as for a stop."""
    here = str(tmp_path / "here")
    chief = [*READY, ["show_story_at_sigterm"], ["append", here, "x"], ["hang"]]
    worker = [["send", "task_ready", {}], ["wait_for", here], ["kill", "SIGKILL"]]
    done = launch({"chief-0": chief, "worker-0": worker}, counts={"worker": 1})
    assert (done.run.exit_code, done.stdout) == (1, "0 1 worker-0\n")
    assert (done.result()["status"], done.result()["error"]["task"]) == ("failed", "worker-0")


def test_a_loss_during_a_stop_leaves_a_stopped_run(launcher_process, tmp_path):
    pids = tmp_path / "pids"
    lost = {"type": "PeerLostError", "message": "ps-0 was lost.", "task": "chief-0"}
    steps = {
        "chief-0": [
            *READY,
            ["leave_signals", str(tmp_path / "took")],
            ["append", str(pids), "{task} {pid}"],
            ["wait_for", str(tmp_path / "gone")],
            ["write_result", {"status": "failed", "error": lost, "warnings": []}],
            ["raise", "PeerLostError", "ps-0 was lost."],
        ],
        "ps-0": [["ignore", "SIGTERM"], ["append", str(pids), "{task} {pid}"], ["hang"]],
    }
    launcher = launcher_process(steps, counts={"ps": 1}, restarts={"max_restarts": 2})
    wait_until(lambda: len(lines_of(pids)) == 2)
    launcher.send_signal(signal.SIGTERM)
    assert "stopping" in launcher.stderr.readline()
    pid_of = {task: int(pid) for task, pid in map(str.split, lines_of(pids))}
    os.kill(pid_of["ps-0"], signal.SIGKILL)
    (tmp_path / "gone").write_text("x\n")
    _, stderr = launcher.communicate(timeout=20)
    warning = "ps-0 was lost. The run was stopping: steps since its last checkpoint are not saved."
    assert (launcher.returncode, stderr) == (143, f"Warning: {warning}\n")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["error"]) == ("stopped", None)
    assert result["warnings"] == [warning]
    last = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["status"]) == ("run_ended", "stopped")


def test_what_the_last_attempt_came_to_is_the_result(launch, tmp_path):
    died, over = str(tmp_path / "died"), str(tmp_path / "over")
    ended = {"status": "failed", "error": {"task": "chief-0"}, "workers_lost": 0}
    completed = {"status": "completed", "error": None, "workers_lost": 0}
    steps = {
        "chief-0": [
            *READY,
            ["write_result", ended],
            ["die_the_first_time", died],
            ["wait_for", over],
            ["write_result", completed],
        ],
        "worker-0": [["send", "task_ready", {}], ["wait_for", died], ["append", over, "x"]],
    }
    done = launch(steps, counts={"worker": 1}, restarts=TOGETHER)
    assert done.run.exit_code == 0
    result = done.result()
    assert (result["status"], result["restarts"], result["workers_lost"]) == ("completed", 1, 0)


@pytest.mark.parametrize(("progress", "num_starts"), [(False, 3), (True, 4)])
def test_restarts_without_progress_are_counted(launch, tmp_path, progress, num_starts):
    """The first two starts make progress, if any do: each forgives the loss before it."""
    starts = tmp_path / "starts"
    chief = [
        *READY,
        ["append", str(starts), "x"],
        ["progress_while_few", str(starts), 3 if progress else 0],
        ["kill", "SIGKILL"],
    ]
    done = launch({"chief-0": chief}, restarts=TOGETHER)
    assert (done.run.exit_code, len(lines_of(starts))) == (1, num_starts)
    assert "Gave up after 2 restarts without progress between" in done.stderr
    result = done.result()
    assert (result["status"], result["error"]["task"]) == ("failed", "chief-0")
    assert result["restarts"] == num_starts - 1


def test_the_run_goes_on_without_a_worker_that_is_lost_again_and_again(launch, tmp_path):
    said, begun = tmp_path / "said", tmp_path / "begun"
    steps = {
        "worker-0": [
            *READY,
            ["append", str(begun), "x"],
            ["wait_for_attempt", 2, ["append", str(said), "{task}"]],
        ],
        "worker-1": [
            ["wait_for", str(begun)],
            ["kill_before_attempt", 2],
            ["append", str(said), "{task}"],
        ],
        "worker-2": [["wait_for_attempt", 2, ["append", str(said), "{task}"]]],
    }
    restarts = RestartPolicy(max_restarts=1, min_workers=2)
    done = launch(steps, counts={"chief": 0, "worker": 3}, restarts=restarts)
    assert done.run.exit_code == 0
    assert sorted(lines_of(said)) == ["worker-0", "worker-1"]
    assert "all start again from the last checkpoint without worker-1." in done.stderr
    assert events_of(done, "run_restarted")[-1]["without"] == "worker-1"


def test_an_error_of_the_users_is_told_once_and_not_repeated(launch, tmp_path):
    starts, failed = tmp_path / "starts", tmp_path / "failed"
    steps = {
        "worker-0": [
            *READY,
            ["append", str(failed), "x"],
            ["raise", "PeerLostError", "worker-1 was lost"],
        ],
        "worker-1": [
            ["append", str(starts), "x"],
            ["wait_for", str(failed)],
            ["raise", "ValueError", "bad row"],
        ],
    }
    counts = {"chief": 0, "worker": 2}
    done = launch(steps, counts=counts, restarts=TOGETHER, timing=Timing(settle_s=10))
    assert (done.run.exit_code, lines_of(starts)) == (1, ["x"])
    assert done.stderr.startswith("Error (worker-1): ValueError: bad row\n")
    assert done.stderr.count("Error (") == 1


def test_a_loss_that_only_others_tell_of_restarts_all_too(launch, tmp_path):
    died = str(tmp_path / "died")
    steps = {"chief-0": [*READY, ["lose_the_first_time", died], ["print", "on"]]}
    done = launch(steps, restarts=TOGETHER)
    assert (done.run.exit_code, done.stdout) == (0, "on\n")
    assert "chief-0: a peer was lost; all start again" in done.stderr


def test_a_worker_that_takes_its_chief_for_lost_is_started_again_alone(launch, tmp_path):
    died, over = str(tmp_path / "died"), str(tmp_path / "over")
    steps = {
        "chief-0": [*READY, ["wait_for", over]],
        "worker-0": [
            ["send", "task_ready", {}],
            ["lose_the_first_time", died],
            ["append", over, "x"],
        ],
    }
    done = launch(steps, counts={"worker": 1}, restarts=ALONE)
    assert done.run.exit_code == 0
    assert "worker-0: a peer was lost; started again (1 of 2 restarts)." in done.stderr


def test_a_frozen_task_at_the_start_is_named(launch):
    config = {"cluster": {"heartbeat_timeout_s": 1.0}}
    timing = Timing(**{**QUICK.__dict__, "heartbeat_timeout_s": 1.0})
    done = launch({"chief-0": [["kill", "SIGSTOP"]]}, timing=timing, config=config)
    assert done.run.exit_code == 1
    assert "chief-0 showed no sign of life for 1 s (cluster.heartbeat_timeout_s)" in done.stderr


@pytest.mark.parametrize("code", [143, -15])
@pytest.mark.parametrize("name", ["chief-0", "worker-0"])
def test_a_task_that_is_told_to_stop_stops_all(launch, tmp_path, code, name):
    took = tmp_path / "took"
    stays = [["take_signal", "SIGTERM", str(took), 143], ["append", str(took), "up"], ["hang"]]
    leaves = [["wait_for", str(took)], ["leave", code] if code > 0 else ["kill", "SIGTERM"]]
    steps = {"chief-0": stays, "worker-0": stays, name: leaves}
    done = launch(steps, counts={"worker": 1}, restarts=TOGETHER)
    assert done.run.exit_code == 143
    other = "worker-0" if name == "chief-0" else "chief-0"
    assert lines_of(took) == ["up", f"{other} SIGTERM"]


def test_a_stop_between_two_attempts_ends_the_run(launcher_process, tmp_path):
    """The signal comes while the tasks of the first attempt are being killed, or a moment later."""
    starts = tmp_path / "starts"
    chief = [*READY, ["append", str(starts), "{pid}"], ["wait_for_attempt", 9, ["exit", 0]]]
    steps = {"chief-0": chief}
    launcher = launcher_process(steps, restarts={"max_restarts": 5})
    wait_until(lambda: lines_of(starts))
    os.kill(int(lines_of(starts)[0]), signal.SIGKILL)
    assert "all start again" in launcher.stderr.readline()
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=20)
    assert launcher.returncode == 143
    assert '"stopped"' in (tmp_path / "run" / "result.json").read_text()
    assert not any(is_alive(pid) for pid in lines_of(starts))


def test_stopped_tasks_too_die_with_a_killed_launcher(launcher_process, tmp_path):
    pids = tmp_path / "pids"
    stays = [["start_grandchild", str(pids)], ["append", str(pids), "{pid}"], ["hang"]]
    launcher = launcher_process({"chief-0": stays, "worker-0": stays}, counts={"worker": 1})
    wait_until(lambda: len(lines_of(pids)) == 4)
    for pid in map(int, lines_of(pids)):
        os.kill(pid, signal.SIGSTOP)
    launcher.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in lines_of(pids)), 10)


@pytest.mark.parametrize("name", ["chief-0", "worker-0"])
def test_what_is_lost_after_the_end_changes_nothing(launch, tmp_path, name):
    over, lost = str(tmp_path / "over"), str(tmp_path / "lost")
    ends = ["write_result", {"status": "completed", "error": None}]
    dies = [["wait_for", over], ["append", lost, "x"], ["kill", "SIGKILL"]]
    chief = [*READY, ends, ["send", "run_ended", {"status": "completed"}], ["append", over, "x"]]
    steps = {
        "chief-0": [*chief, *(dies if name == "chief-0" else [["wait_for", lost]])],
        "worker-0": [["send", "task_ready", {}], *(dies if name == "worker-0" else [])],
    }
    done = launch(steps, counts={"worker": 1}, restarts=TOGETHER)
    assert (done.run.exit_code, done.result()["status"]) == (0, "completed")
    assert events_of(done, "run_restarted") == []


def test_a_worker_that_is_lost_after_a_stop_is_not_started_again(launch, tmp_path):
    over, lost = str(tmp_path / "over"), str(tmp_path / "lost")
    ends = [["write_result", {"status": "stopped", "error": None}]]
    ends += [["send", "run_ended", {"status": "stopped"}], ["append", over, "x"]]
    steps = {
        "chief-0": [*READY, *ends, ["wait_for", lost]],
        "worker-0": [
            ["send", "task_ready", {}],
            ["wait_for", over],
            ["append", lost, "x"],
            ["kill", "SIGKILL"],
        ],
    }
    done = launch(steps, counts={"worker": 1}, restarts=TOGETHER)
    assert done.result()["status"] == "stopped"
    assert events_of(done, "run_restarted") == events_of(done, "task_restarted") == []
