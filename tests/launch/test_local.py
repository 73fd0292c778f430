import os
import subprocess
import sys
import time

import pytest

from kdist.cluster.task import TaskType
from kdist.launch.restarts import RestartPolicy
from kdist.launch.timing import Timing

from .conftest import HERE, is_alive, lines_of, wait_until

WORKERS = {"worker": 2, "ps": 1}
HANG = [["hang"]]


def note_pid(path):
    return ["append", str(path), "{pid}"]


def test_a_folder_that_no_socket_fits_in_is_named(launcher_process, tmp_path, monkeypatch):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    _, stderr = launcher_process({"chief-0": []}).communicate(timeout=20)
    assert "path too long" in stderr
    assert str(folder) in stderr and "TMPDIR" in stderr


def test_a_run_of_one_task(launch):
    done = launch({"chief-0": [["make_folder"], ["print", "hello"], ["exit", 0]]})
    assert (done.run.exit_code, done.stdout, done.stderr) == (0, "hello\n", "")
    assert done.run.run_dir == done.run_dir
    assert done.log("chief-0") == "hello\n"


@pytest.mark.parametrize("code", [0, 3, None])
def test_a_task_that_calls_sys_exit_has_failed(launch, code):
    done = launch({"chief-0": [["make_folder"], ["call_exit", code]]})
    assert done.run.exit_code == 1
    shown = "" if code is None else code
    assert f"chief-0): sys.exit({shown}) was called (" in done.stderr
    assert "fake_tasks.py, line" in done.stderr


def test_only_the_chief_is_shown_and_everybody_is_logged(launch, tmp_path):
    told = str(tmp_path / "told")
    steps = {
        f"worker-{index}": [["print", f"from {index}"], ["append", told, "x"]] for index in (0, 1)
    }
    steps["chief-0"] = [["print", "early"], ["make_folder"], ["wait_for", told, 2], ["print", "é"]]
    done = launch(steps, counts={"worker": 2})
    assert (done.run.exit_code, done.stdout, done.stderr) == (0, "early\né\n", "")
    assert [done.log(f"worker-{index}") for index in (0, 1)] == ["from 0\n", "from 1\n"]
    assert done.log("chief-0") == "early\né\n"


def test_events_tell_who_started_and_how_it_ended(launch):
    chief = [["make_folder"], ["send", "task_ready", {}]]
    done = launch({"chief-0": chief, "worker-0": []}, counts={"worker": 1})
    events = done.events()
    started = [event for event in events if event["event"] == "task_started"]
    assert [event["task"] for event in started] == ["chief-0", "worker-0"]
    assert all(event["pid"] > 0 and event["time"] <= time.time() for event in started)
    assert {event["event"] for event in events} == {"task_started", "task_ready", "task_ended"}
    assert [event["time"] for event in events[:2]] == sorted(e["time"] for e in events[:2])


@pytest.mark.parametrize(
    ("steps", "grace_s"),
    [(HANG, 0.3), ([["ignore", "SIGTERM"], ["hang"]], 0.3)],
    ids=["until SIGTERM", "until SIGKILL"],
)
def test_who_outstays_the_chief_is_ended(launch, tmp_path, steps, grace_s):
    pids = tmp_path / "pids"
    chief = [["make_folder"], ["wait_for", str(pids), 2]]
    others = [note_pid(pids), *steps]
    timing = Timing(stop_grace_s=grace_s, terminate_grace_s=0.3)
    done = launch(
        {"chief-0": chief, "worker-0": others, "ps-0": [note_pid(pids)]},
        counts={"worker": 1, "ps": 1},
        timing=timing,
    )
    assert done.run.exit_code == 0
    expected = "worker-0 was killed by SIGTERM" if steps == HANG else "killed: worker-0."
    assert expected in done.stderr and done.stderr.startswith("Warning: ")
    assert not any(is_alive(pid) for pid in lines_of(pids))


def test_a_failure_is_told_once_with_its_task_and_ends_the_run(launch, tmp_path):
    pids = tmp_path / "pids"
    stay = [note_pid(pids), ["hang"]]
    steps = {
        "chief-0": [["make_folder"], *stay],
        "worker-0": stay,
        "worker-1": [["wait_for", str(pids), 3], ["raise", "ValueError", "boom"]],
        "ps-0": stay,
    }
    done = launch(steps, counts=WORKERS)
    assert done.run.exit_code == 1
    log_path = done.run_dir / "logs" / "worker-1.log"
    assert done.stderr == (
        "Error (worker-1): ValueError: boom\n"
        f"(debug=true shows the traceback; it is in {log_path})\n"
    )
    assert "Traceback" in done.log("worker-1") and "Traceback" not in done.stdout
    result = done.result()
    assert result["status"] == "failed"
    assert result["error"] == {"type": "ValueError", "message": "boom", "task": "worker-1"}
    [failed] = [event for event in done.events() if event["event"] == "task_failed"]
    assert (failed["task"], failed["message"], result["workers_lost"]) == ("worker-1", "boom", 0)
    assert result["cluster"] == {"chief": 1, "worker": 2, "ps": 1, "evaluator": 0}
    assert not any(is_alive(pid) for pid in lines_of(pids))


def test_a_message_that_is_no_utf_8_is_told(launch):
    steps = [["make_folder"], ["raise", "ValueError", "no file /gr\udcfcn"]]
    done = launch({"chief-0": steps})
    assert done.run.exit_code == 1
    assert "no file /gr\\udcfcn" in done.log("chief-0")


def test_debug_shows_the_traceback(launch):
    done = launch({"chief-0": [["raise", "TrainingError", "boom"]]}, config={"debug": True})
    assert done.run.exit_code == 1
    assert done.stderr.startswith("Error (chief-0): boom\nTraceback (most recent call last)")


def test_a_configuration_error_leaves_no_run_folder(launch):
    done = launch({"chief-0": [["raise", "ConfigError", "epochs must be positive."]]})
    assert (done.run.exit_code, done.stdout) == (2, "")
    assert done.stderr == "Error (chief-0): epochs must be positive.\n"
    assert not done.run_dir.exists() and done.run.run_dir is None


def test_a_task_that_is_killed_is_named_with_its_last_lines(launch):
    chief = [["make_folder"], *[["print", f"line {index}"] for index in range(30)]]
    done = launch({"chief-0": [*chief, ["kill", "SIGKILL"]]})
    assert done.run.exit_code == 1
    first, where, *tail = done.stderr.splitlines()
    assert first == (
        "Error (chief-0): chief-0 was killed by SIGKILL (out of memory?) without a report."
    )
    assert where == f"Its last lines ({done.run_dir}/logs/chief-0.log):"
    assert tail == [f"  | line {index}" for index in range(15, 30)]
    assert done.result()["error"]["task"] == "chief-0"
    assert done.events()[-1]["event"] == "run_ended"


def test_the_cause_is_told_not_its_consequence(launch, tmp_path):
    chief_failed = tmp_path / "failed"
    steps = {
        "chief-0": [
            ["make_folder"],
            ["append", str(chief_failed), "x"],
            ["raise", "PeerLostError", "worker-0 was lost"],
        ],
        "worker-0": [["wait_for", str(chief_failed)], ["raise", "ValueError", "the cause"]],
    }
    done = launch(steps, counts={"worker": 1}, timing=Timing(settle_s=20))
    assert (done.run.exit_code, done.run.cause.task.type) == (1, TaskType.WORKER)
    assert done.stderr.startswith("Error (worker-0): ValueError: the cause\n")
    assert done.result()["error"]["task"] == "worker-0"


def test_a_consequence_is_told_where_nothing_better_is_known(launch):
    steps = {"chief-0": [["raise", "PeerLostError", "gone"]], "worker-0": HANG}
    done = launch(steps, counts={"worker": 1})
    assert done.run.exit_code == 75
    assert done.stderr.startswith("Error (chief-0): gone\n")


def test_a_lost_worker_is_started_again_with_the_same_request(launch, tmp_path):
    died, over = tmp_path / "died", tmp_path / "over"
    steps = {
        "chief-0": [["make_folder"], ["wait_for", str(over)]],
        "worker-0": [
            ["send", "task_ready", {}],
            ["die_the_first_time", str(died)],
            ["print", "again"],
            ["append", str(over), "x"],
        ],
    }
    restarts = RestartPolicy(alone=frozenset({TaskType.WORKER}), max_restarts=2)
    done = launch(steps, counts={"worker": 1}, restarts=restarts)
    assert done.run.exit_code == 0
    assert "worker-0 was killed by SIGKILL (out of memory?); started again" in done.stderr
    assert done.log("worker-0") == "again\n"
    kinds = [event["event"] for event in done.events() if event.get("task") == "worker-0"]
    assert kinds == [
        "task_started",
        "task_ready",
        "task_lost",
        "task_restarted",
        "task_ready",
        "task_ended",
    ]


@pytest.mark.parametrize("is_ready", [True, False])
def test_restarts_are_counted_and_start_up_errors_are_not_repeated(launch, tmp_path, is_ready):
    starts = tmp_path / "starts"
    worker = [["append", str(starts), "x"], ["kill", "SIGKILL"]]
    if is_ready:
        worker.insert(0, ["send", "task_ready", {}])
    restarts = RestartPolicy(alone=frozenset({TaskType.WORKER}), max_restarts=2)
    steps = {"chief-0": HANG, "worker-0": worker}
    done = launch(steps, counts={"worker": 1}, restarts=restarts)
    assert done.run.exit_code == 1
    assert len(lines_of(starts)) == (3 if is_ready else 1)
    assert "Error (worker-0): worker-0 was killed by SIGKILL" in done.stderr


def test_workers_under_a_coordinator_are_restarted_by_default(launch, tmp_path):
    died, over = tmp_path / "died", tmp_path / "over"
    again = [["send", "task_ready", {}], ["die_the_first_time", str(died)]]
    steps = {
        "chief-0": [["wait_for", str(over)]],
        "worker-0": [*again, ["append", str(over), "x"]],
        "ps-0": [],
    }
    from kit import make_requests

    from kdist.launch.local import run_local

    strategy = {"name": "ps", "replication": "in_graph", "update": "async"}
    requests = make_requests(steps, tmp_path / "run", worker=1, ps=1, strategy=strategy)
    assert run_local(requests, task_main="fake_tasks:scripted", preload=()) == 0
    assert over.exists()


@pytest.mark.parametrize("task", ["chief-0", "worker-0"])
def test_a_task_that_ends_well_before_it_is_done_has_failed(launch, task, tmp_path):
    made = str(tmp_path / "made")
    chief = [["make_folder"], ["append", made, "x"], ["hang"]]
    steps = {"chief-0": chief, "worker-0": [["wait_for", made], ["hang"]]}
    steps[task] = [*steps[task][:-1], ["leave", 0]]
    done = launch(steps, counts={"worker": 1})
    assert done.run.exit_code == 1
    assert f"{task} ended with exit code 0 before it was done" in done.stderr
    assert done.result()["status"] == "failed"


def test_a_task_that_is_stopped_while_it_fails_ends_without_a_word(launch):
    """As where several tasks fail: the launcher ends the others for the first one."""
    done = launch({"chief-0": [["make_folder"], ["be_stopped_while_failing"]]})
    assert done.run.exit_code == 143
    assert "Traceback" not in done.stdout + done.stderr


def test_an_interrupt_of_a_task_that_has_ended_says_nothing(launch):
    steps = [["be_interrupted_at_the_end"], ["raise", "ValueError", "the cause"]]
    done = launch({"chief-0": steps})
    assert (done.run.exit_code, done.run.cause.exit_code) == (1, 1)
    assert (done.stdout, done.stderr.count("Traceback")) == ("", 0)
    assert done.stderr.startswith("Error (chief-0): ValueError: the cause\n")


def test_a_crash_after_the_end_is_no_failure(launch):
    finished = ["send", "finished", {"exit_code": 0}]
    done = launch({"chief-0": [["make_folder"], finished, ["kill", "SIGABRT"]]})
    assert done.run.exit_code == 0


def test_a_task_that_cannot_leave_is_killed(launch):
    finished = ["send", "finished", {"exit_code": 0}]
    done = launch({"chief-0": [["make_folder"], finished, ["ignore", "SIGTERM"], ["hang"]]})
    assert done.run.exit_code == 0
    assert "had to be killed: chief-0" in done.stderr


def test_a_failed_task_that_cannot_leave_is_killed(launch):
    failed = ["send", "failed", {"type": "ConfigError", "message": "no such key"}]
    done = launch({"chief-0": [failed, ["ignore", "SIGTERM"], ["hang"]]})
    assert (done.run.exit_code, done.stderr) == (2, "Error (chief-0): no such key\n")


def test_what_a_task_started_ends_with_it(launch, tmp_path):
    pids = tmp_path / "pids"
    done = launch({"chief-0": [["start_grandchild", str(pids)], ["exit", 0]]})
    assert done.run.exit_code == 0
    assert lines_of(pids)
    wait_until(lambda: not any(is_alive(pid) for pid in lines_of(pids)), 5)


def test_a_worker_that_leaves_early_does_not_end_the_run(launch, tmp_path):
    left = str(tmp_path / "left")
    steps = {
        "chief-0": [["wait_for", left], ["print", "on"]],
        "worker-0": [["append", left, "x"]],
    }
    done = launch(steps, counts={"worker": 1})
    assert (done.run.exit_code, done.stdout) == (0, "on\n")


def test_tasks_get_the_environment_and_folder_of_today(launch, tmp_path, monkeypatch):
    show = ["show", "os.environ.get('KDIST_TEST'), os.getcwd(), os.getcwd() in sys.path, sys.argv"]
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("KDIST_TEST", name)
        done = launch({"chief-0": [show]}, environment=dict(os.environ))
        assert done.stdout == f"{(name, str(folder), True, ['kdist', 'chief-0'])}\n"


def test_output_without_a_line_end_is_shown_as_it_comes_and_tidied(launch):
    done = launch({"chief-0": [["write", "\x1b[?25l50%\r"], ["kill", "SIGKILL"]]})
    assert done.stdout == "\x1b[?25l50%\r\x1b[?25h\n"


def test_tensorflow_noise_is_hidden_from_the_terminal_only(launch):
    noise = "I0000 00:00:1795961411.800505    6097 port.cc:153] oneDNN custom operations are on."
    steps = {"chief-0": [["make_folder"], ["print", noise], ["print", "mine"]]}
    done = launch(steps)
    assert done.stdout == "mine\n" and done.log("chief-0") == f"{noise}\nmine\n"


def test_verbose_shows_the_noise(launch):
    noise = "I0000 00:00:1795961411.800505    6097 port.cc:153] oneDNN custom operations are on."
    done = launch({"chief-0": [["print", noise]]}, config={"verbose": True})
    assert done.stdout == f"{noise}\n"


def test_an_unguarded_script_is_not_run_again_by_its_tasks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "print('once', flush=True)\n"
        "from kit import make_requests\n"
        "from kdist.launch.local import run_local\n"
        "requests = make_requests({'chief-0': [['print', 'task']]}, 'run')\n"
        "sys.exit(run_local(requests, task_main='fake_tasks:scripted', preload=()))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\ntask\n", "")


@pytest.mark.cluster
@pytest.mark.slow
def test_forked_tasks_run_tensorflow(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from kit import make_requests\n"
        "from kdist.launch.local import run_local\n"
        "requests = make_requests({}, 'run', worker=1, ps=1)\n"
        "sys.exit(run_local(requests, task_main='fake_tasks:with_tensorflow'))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "sum 1000.0\n", "")
