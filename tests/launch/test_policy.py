import signal

import pytest

from kdist.cluster.task import Task, TaskType
from kdist.launch.policy import (
    Failure,
    TaskEnd,
    describe_exit,
    root_cause,
    run_exit_code,
)
from kdist.launch.timing import Reason, StopPlan, Timing, plan_stop

CHIEF = Task(TaskType.CHIEF, 0)
WORKER = Task(TaskType.WORKER, 0)
OTHER = Task(TaskType.WORKER, 1)
PS = Task(TaskType.PS, 0)
KILLED = -signal.SIGKILL


def failed(task, at_s, is_consequence=False, **more):
    more = {"type": "ValueError", "message": "", **more}
    return Failure(task=task, at_s=at_s, is_consequence=is_consequence, **more)


def ended(task, at_s, exit_code=KILLED, **more):
    return TaskEnd(task=task, exit_code=exit_code, at_s=at_s, **more)


CHIEF_SAW = failed(CHIEF, 1.0, is_consequence=True)


@pytest.mark.parametrize(
    ("failures", "ends", "task"),
    [
        ([], [], None),
        ([], [ended(CHIEF, 1, 0), ended(WORKER, 2, 143)], None),
        ([failed(WORKER, 2), failed(CHIEF, 1)], [], CHIEF),
        ([CHIEF_SAW, failed(WORKER, 2)], [], WORKER),
        ([CHIEF_SAW], [ended(WORKER, 2)], WORKER),
        ([CHIEF_SAW], [ended(CHIEF, 2, 75, failure=CHIEF_SAW)], CHIEF),
        ([CHIEF_SAW], [ended(WORKER, 2, 75)], CHIEF),
        ([failed(CHIEF, 3)], [ended(OTHER, 2), ended(WORKER, 4)], OTHER),
        ([failed(CHIEF, 3)], [ended(PS, 3)], PS),
        ([failed(CHIEF, 3)], [ended(PS, 2, was_stopped=True)], CHIEF),
        ([], [ended(PS, 2, 3), ended(WORKER, 2)], WORKER),
    ],
)
def test_the_root_cause(failures, ends, task):
    cause = root_cause(failures, ends)
    assert (cause and cause.task) == task


@pytest.mark.parametrize(
    ("exit_code", "text"),
    [
        (3, "ended with exit code 3"),
        (-signal.SIGKILL, "was killed by SIGKILL (out of memory?)"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-77, "was killed by signal 77"),
    ],
)
def test_how_a_process_ended_in_words(exit_code, text):
    assert describe_exit(exit_code) == text


FAULT = root_cause([failed(WORKER, 1)], [])
BAD_CONFIG = root_cause([failed(WORKER, 1, exit_code=2)], [])
ODD_CODE = root_cause([], [ended(CHIEF, 1, 42)])


@pytest.mark.parametrize(
    ("chief", "cause", "stop_signal", "exit_code"),
    [
        (0, None, None, 0),
        (0, None, signal.SIGINT, 0),
        (130, None, signal.SIGINT, 130),
        (-signal.SIGTERM, None, signal.SIGTERM, 143),
        (None, None, signal.SIGINT, 130),
        (143, None, None, 143),
        (KILLED, FAULT, None, 1),
        (2, BAD_CONFIG, None, 2),
        (42, ODD_CODE, None, 1),
        (1, FAULT, signal.SIGINT, 1),
    ],
)
def test_the_launchers_exit_code(chief, cause, stop_signal, exit_code):
    assert exit_code == run_exit_code(chief_exit_code=chief, cause=cause, stop_signal=stop_signal)


TIMING = Timing(stop_grace_s=30, failure_grace_s=10, terminate_grace_s=5, settle_s=3)


@pytest.mark.parametrize(
    ("reason", "current", "terminate_at_s", "kill_at_s"),
    [
        (Reason.DONE, None, 130, 135),
        (Reason.FAILED, None, 100, 110),
        (Reason.CHIEF_LOST, None, 100, 102),
        (Reason.CHIEF_LOST, StopPlan(Reason.FAILED, 95, 105), 95, 102),
        (Reason.RESTART, None, 100, 100),
        (Reason.SIGNAL, None, 130, 135),
        (Reason.SECOND_SIGNAL, None, 100, 100),
        (Reason.FAILED, StopPlan(Reason.DONE, 102, 112), 100, 110),
        (Reason.DONE, StopPlan(Reason.SIGNAL, 110, 115), 110, 115),
        (Reason.SECOND_SIGNAL, StopPlan(Reason.SIGNAL, 110, 115), 100, 100),
    ],
)
def test_when_stopping_tasks_are_ended(reason, current, terminate_at_s, kill_at_s):
    plan = plan_stop(reason, 100.0, TIMING, current)
    assert plan == StopPlan(reason, terminate_at_s, kill_at_s)


def test_a_short_stop_grace_also_bounds_the_end_after_a_failure():
    assert plan_stop(Reason.FAILED, 100.0, Timing(stop_grace_s=1.0)).kill_at_s == 101.0
