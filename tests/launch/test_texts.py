from pathlib import Path

import pytest

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.errors import ConfigError
from kdist.launch.environment import prepare_environment
from kdist.launch.failure_text import render_failure
from kdist.launch.journal import Journal, known_facts, settled_result
from kdist.launch.policy import Cause
from kdist.records.events import read_events

WORKER = Task(TaskType.WORKER, 1)
LOG = Path("run/logs/worker-1.log")


def cause(**more):
    defaults = {"task": WORKER, "type": "ValueError", "message": "boom", "exit_code": 1}
    return Cause(**{**defaults, **more})


@pytest.mark.parametrize(
    ("found", "tail", "log_path", "debug", "text"),
    [
        (cause(), [], LOG, False, "Error (worker-1): ValueError: boom\n"),
        (cause(message=""), [], None, False, "Error (worker-1): ValueError\n"),
        (cause(message="ValueError: x"), [], None, False, "Error (worker-1): ValueError: x\n"),
        (cause(type="ConfigError", exit_code=2), [], None, False, "Error (worker-1): boom\n"),
        (
            cause(traceback="Traceback\n  x\n"),
            ["not shown"],
            LOG,
            False,
            "Error (worker-1): ValueError: boom\n"
            "(debug=true shows the traceback; it is in run/logs/worker-1.log)\n",
        ),
        (
            cause(type="TaskTimeoutError", traceback="Traceback\n  x\n"),
            [],
            LOG,
            False,
            "Error (worker-1): boom\n",
        ),
        (
            cause(type="PeerLostError", exit_code=75, traceback="Traceback\n  x\n"),
            [],
            None,
            True,
            "Error (worker-1): boom\nTraceback\n  x\n",
        ),
        (
            cause(traceback="Traceback\n  x\n"),
            [],
            LOG,
            True,
            "Error (worker-1): ValueError: boom\nTraceback\n  x\n",
        ),
        (
            cause(type="TaskDied", is_silent=True),
            ["one", "two"],
            LOG,
            False,
            "Error (worker-1): boom\nIts last lines (run/logs/worker-1.log):\n  | one\n  | two\n",
        ),
        (
            cause(type="TaskDied", is_silent=True),
            ["one"],
            None,
            False,
            "Error (worker-1): boom\nIts last lines:\n  | one\n",
        ),
    ],
)
def test_the_message_of_a_failed_run(found, tail, log_path, debug, text):
    assert text == render_failure(found, tail=tail, log_path=log_path, debug=debug)


CHIEFS = {"type": "PeerLostError", "message": "worker-1 was lost", "task": "chief-0"}
CAUSES = {"type": "ValueError", "message": "boom", "task": "worker-1"}


@pytest.mark.parametrize(
    ("written", "found", "was_stopped", "expected"),
    [
        (None, None, False, None),
        ({"status": "completed"}, None, False, None),
        (None, cause(), False, ("failed", CAUSES)),
        ({"status": "failed", "error": CHIEFS}, cause(), False, ("failed", CAUSES)),
        ({"status": "failed", "error": CAUSES}, cause(message="less"), False, None),
        ({"status": "failed", "error": CHIEFS}, cause(is_consequence=True), False, None),
        ({"status": "stopped", "error": None}, cause(), False, ("failed", CAUSES)),
        (None, None, True, ("stopped", None)),
        ({"status": "stopped", "error": None}, None, True, None),
        ({"status": "failed", "error": CHIEFS}, None, True, ("stopped", None)),
        ({"status": "failed", "error": CHIEFS}, cause(), True, ("failed", CAUSES)),
        ({"status": "completed", "error": None}, None, True, None),
    ],
)
def test_who_has_the_last_word_in_result_json(written, found, was_stopped, expected):
    settled = settled_result(
        written, cause=found, was_stopped=was_stopped, known={"strategy": "ps"}
    )
    assert (settled and (settled["status"], settled["error"])) == expected
    if settled and written is None:
        assert settled["strategy"] == "ps" and settled["metrics"] == {}


def test_what_is_known_without_the_chief():
    spec = ClusterSpec({TaskType.CHIEF: ("a:1",), TaskType.WORKER: ("a:2", "a:3")})
    facts = known_facts({"strategy": {"name": "ps", "update": "async"}, "epochs": 3}, spec)
    assert facts["cluster"] == {"chief": 1, "worker": 2, "ps": 0, "evaluator": 0}
    assert (facts["strategy"], facts["update"], facts["epochs"]) == ("ps", "async", 3)


def test_events_wait_for_the_run_folder_and_keep_their_time(tmp_path):
    times = iter([1.0, 2.0])
    journal = Journal(clock=lambda: next(times))
    journal.record("task_started", task="chief-0", pid=7)
    journal.open(tmp_path)
    journal.record("task_lost", task="chief-0")
    assert read_events(tmp_path / "events.jsonl") == [
        {"time": 1.0, "event": "task_started", "task": "chief-0", "pid": 7},
        {"time": 2.0, "event": "task_lost", "task": "chief-0"},
    ]


def test_a_run_folder_that_is_gone_ends_nothing(tmp_path):
    journal = Journal()
    journal.open(tmp_path / "gone")
    journal.record("task_started")
    journal.settle_result(cause=cause(), was_stopped=False, known={})
    assert "gone" in journal.error


@pytest.mark.parametrize(
    ("environ", "options", "expected"),
    [
        ({}, {}, {"TF_CPP_MIN_LOG_LEVEL": "2", "no_grpc_proxy": "127.0.0.1,localhost,::1"}),
        ({}, {"verbose": True}, {"TF_CPP_MIN_LOG_LEVEL": None}),
        ({"TF_CPP_MIN_LOG_LEVEL": "0"}, {}, {"TF_CPP_MIN_LOG_LEVEL": None}),
        (
            {"no_proxy": "a.b,localhost"},
            {"hosts": ["h1", "h1"]},
            {"no_grpc_proxy": "a.b,localhost,127.0.0.1,::1,h1"},
        ),
        (
            {"no_proxy": "a", "no_grpc_proxy": "b"},
            {},
            {"no_grpc_proxy": "b,127.0.0.1,localhost,::1"},
        ),
        ({"KERAS_BACKEND": "tensorflow"}, {}, {"KERAS_BACKEND": "tensorflow"}),
        ({"TF_USE_LEGACY_KERAS": "1"}, {}, {"TF_USE_LEGACY_KERAS": "0"}),
    ],
)
def test_the_environment_of_tasks(environ, options, expected):
    variables = prepare_environment(environ, **options)
    assert variables["GRPC_FAIL_FAST"] == "use_caller"
    assert {name: variables.get(name) for name in expected} == expected


def test_another_keras_backend_is_refused():
    with pytest.raises(ConfigError, match="Received: KERAS_BACKEND=jax"):
        prepare_environment({"KERAS_BACKEND": "jax"})
