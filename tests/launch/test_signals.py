import os
import signal
import time
from pathlib import Path

import pytest

from .conftest import is_alive, lines_of, wait_until


def staying(path, *before):
    return [*before, ["append", str(path), "{pid}"], ["hang"]]


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_reaches_every_task(launcher_process, tmp_path, name, code):
    pids, took = tmp_path / "pids", tmp_path / "took"
    take = ["take_signal", name, str(took), code]
    steps = {each: staying(pids, take) for each in ("chief-0", "worker-0")}
    steps["chief-0"].insert(0, ["make_folder"])
    launcher = launcher_process(steps, counts={"worker": 1})
    wait_until(lambda: len(lines_of(pids)) == 2)
    launcher.send_signal(getattr(signal, name))
    _, stderr = launcher.communicate(timeout=20)
    assert launcher.returncode == code
    assert sorted(lines_of(took)) == [f"chief-0 {name}", f"worker-0 {name}"]
    assert stderr.splitlines() == [
        f"{name}: stopping. The tasks save and end; a second one kills them."
    ]
    assert not any(is_alive(pid) for pid in lines_of(pids))


def test_a_signal_to_the_whole_group_is_forwarded_once(launcher_process, tmp_path):
    pids, took = tmp_path / "pids", tmp_path / "took"
    steps = {"chief-0": staying(pids, ["take_signal", "SIGTERM", str(took), 143])}
    launcher = launcher_process(steps, start_new_session=True)
    wait_until(lambda: lines_of(pids))
    os.killpg(launcher.pid, signal.SIGTERM)
    launcher.communicate(timeout=20)
    assert (launcher.returncode, lines_of(took)) == (143, ["chief-0 SIGTERM"])


@pytest.mark.parametrize("name", ["chief-0", "worker-0"])
def test_a_stop_is_heard_at_once_and_outlasts_a_loss(launcher_process, tmp_path, name):
    """The task that is told to stop is in the middle of a step; then a server is killed."""
    pids, took, gone = tmp_path / "pids", tmp_path / "took", tmp_path / "gone"
    here = ["append", str(pids), "{task} {pid}"]
    steps = {
        "chief-0": [["make_folder"], ["send", "task_ready", {}]],
        "worker-0": [],
        "ps-0": [["ignore", "SIGTERM"], here, ["hang"]],
    }
    for task in ("chief-0", "worker-0"):
        stays = ["compute"] if task == name else ["wait_for", str(gone)]
        steps[task] += [["leave_signals", str(took)], here, stays, ["exit", 143]]
    restarts = {"max_restarts": 2}
    counts = {"worker": 1, "ps": 1}
    timing = {"stop_grace_s": 1.0, "terminate_grace_s": 0.5}
    launcher = launcher_process(steps, counts=counts, restarts=restarts, timing=timing)
    wait_until(lambda: len(lines_of(pids)) == 3)
    pid_of = {task: int(pid) for task, pid in map(str.split, lines_of(pids))}
    os.kill(pid_of[name], signal.SIGTERM)
    assert launcher.stderr.readline() == (
        f"SIGTERM to {name}: stopping. The tasks save and end; a second one kills them.\n"
    )
    assert name not in lines_of(took)
    os.kill(pid_of["ps-0"], signal.SIGKILL)
    gone.write_text("x\n")
    _, stderr = launcher.communicate(timeout=20)
    assert (launcher.returncode, "start again" in stderr) == (143, False)
    assert '"stopped"' in (tmp_path / "run" / "result.json").read_text()


def test_a_signal_to_all_of_them_is_one(launcher_process, tmp_path):
    """As a service manager sends it, to each process; the launcher hears of the tasks' first."""
    pids, took = tmp_path / "pids", tmp_path / "took"
    stays = [["leave_signals", str(took)], ["append", str(pids), "{pid}"]]
    stays += [["wait_for", str(tmp_path / "go")], ["exit", 143]]
    launcher = launcher_process({"chief-0": stays, "worker-0": stays}, counts={"worker": 1})
    wait_until(lambda: len(lines_of(pids)) == 2)
    for pid in map(int, lines_of(pids)):
        os.kill(pid, signal.SIGTERM)
    assert "stopping" in launcher.stderr.readline()
    launcher.send_signal(signal.SIGTERM)
    (tmp_path / "go").write_text("x\n")
    _, stderr = launcher.communicate(timeout=20)
    assert (launcher.returncode, stderr) == (143, "")


def test_a_signal_to_a_process_that_a_task_has_forked_is_none_to_the_task(launch, tmp_path):
    took = tmp_path / "took"
    chief = [["take_signal", "SIGTERM", str(took), 143], ["fork_and_signal"], ["print", "on"]]
    done = launch({"chief-0": chief})
    assert (done.run.exit_code, done.stdout, done.stderr) == (0, "on\n", "")


def test_a_second_signal_kills_at_once(launcher_process, tmp_path):
    pids = tmp_path / "pids"
    deaf = [["ignore", "SIGINT"], ["ignore", "SIGTERM"]]
    steps = {"chief-0": [["make_folder"], *staying(pids, *deaf)], "ps-0": staying(pids, *deaf)}
    launcher = launcher_process(steps, counts={"ps": 1})
    wait_until(lambda: len(lines_of(pids)) == 2)
    launcher.send_signal(signal.SIGINT)
    assert "stopping" in launcher.stderr.readline()
    start_s = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=20)
    assert launcher.returncode == 130 and time.monotonic() - start_s < 15
    assert not any(is_alive(pid) for pid in lines_of(pids))
    assert '"stopped"' in (tmp_path / "run" / "result.json").read_text()


def test_tasks_that_do_not_heed_a_signal_are_killed_after_the_grace(launcher_process, tmp_path):
    pids = tmp_path / "pids"
    deaf = [["ignore", "SIGINT"], ["ignore", "SIGTERM"]]
    timing = {"stop_grace_s": 0.3, "terminate_grace_s": 0.3}
    launcher = launcher_process({"chief-0": staying(pids, *deaf)}, timing=timing)
    wait_until(lambda: lines_of(pids))
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=20)
    assert launcher.returncode == 130
    assert not any(is_alive(pid) for pid in lines_of(pids))


def test_a_chief_that_completes_after_a_signal_has_completed(launcher_process, tmp_path):
    pids, took = tmp_path / "pids", tmp_path / "took"
    steps = {"chief-0": staying(pids, ["take_signal", "SIGINT", str(took), 0])}
    launcher = launcher_process(steps)
    wait_until(lambda: lines_of(pids))
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=20)
    assert launcher.returncode == 0


def test_tasks_die_with_a_killed_launcher(launcher_process, tmp_path):
    pids = tmp_path / "pids"
    deaf = [["ignore", "SIGINT"], ["ignore", "SIGTERM"], ["start_grandchild", str(pids)]]
    steps = {each: staying(pids, *deaf) for each in ("chief-0", "worker-0", "ps-0")}
    launcher = launcher_process(steps, counts={"worker": 1, "ps": 1})
    wait_until(lambda: len(lines_of(pids)) == 6)
    assert all(is_alive(pid) for pid in lines_of(pids))
    launcher.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in lines_of(pids)), 10)


def test_a_reader_that_closes_early_does_not_end_the_run(launcher_process, tmp_path):
    read, over = tmp_path / "read", tmp_path / "over"
    chief = [["print", "first"], ["wait_for", str(read)], ["print", "second"]]
    launcher = launcher_process({"chief-0": [*chief, ["append", str(over), "x"]]})
    assert launcher.stdout.readline() == "first\n"
    launcher.stdout.close()
    read.write_text("x\n")
    assert launcher.stderr.read() == ""
    assert launcher.wait(20) == 0 and over.exists()


def test_no_process_is_left(launcher_process, tmp_path):
    pids = tmp_path / "pids"
    steps = {each: [["append", str(pids), "{pid}"]] for each in ("chief-0", "worker-0")}
    launcher = launcher_process(steps, counts={"worker": 1}, start_new_session=True)
    launcher.communicate(timeout=20)
    assert launcher.returncode == 0

    def is_of_launcher(pid):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            return False
        return str(tmp_path) in command

    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and is_of_launcher(pid)]
    assert not any(is_alive(pid) for pid in lines_of(pids))
