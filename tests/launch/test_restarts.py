"""What the end of a task leads to, how restarts are counted, and what the next attempt asks for."""

import signal
from pathlib import Path

import pytest

from kdist.cluster.task import Task, TaskType
from kdist.launch.attempts import next_requests
from kdist.launch.outcome import Restart
from kdist.launch.policy import Cause, Failure, TaskEnd
from kdist.launch.restarts import (
    Decision,
    RestartBudget,
    RestartPolicy,
    decide,
    heeds_stop,
    stop_signal_of,
    stops_first,
)
from kdist.launch.timing import Reason

from .kit import make_requests

CHIEF = Task(TaskType.CHIEF, 0)
WORKER = Task(TaskType.WORKER, 0)
PS = Task(TaskType.PS, 0)
KILLED = -signal.SIGKILL
POLICY = RestartPolicy(alone=frozenset({TaskType.WORKER}), max_restarts=2)
TOGETHER = RestartPolicy(max_restarts=2)
CAN_SHRINK = RestartPolicy(max_restarts=2, min_workers=1)
NEVER = RestartPolicy()
CONTINUE, STOP = Decision.CONTINUE, Decision.STOP_ALL
ALONE, ALL, WITHOUT = Decision.RESTART_TASK, Decision.RESTART_ALL, Decision.RESTART_WITHOUT


def decided(
    task,
    exit_code,
    policy=POLICY,
    *,
    chief=CHIEF,
    failure=None,
    ready=True,
    num_spent=0,
    num_workers=2,
    is_stopping=False,
    **facts,
):
    budget = RestartBudget(policy)
    budget.has_begun = facts.get("has_begun", True)
    budget.is_over = facts.get("is_over", False)
    for _ in range(num_spent):
        budget.spend()
    return decide(
        TaskEnd(task=task, exit_code=exit_code, at_s=0.0, was_ready=ready, failure=failure),
        chief=chief,
        budget=budget,
        num_workers=num_workers,
        is_stopping=is_stopping,
    )


@pytest.mark.parametrize(
    ("task", "exit_code", "policy", "decision"),
    [
        (CHIEF, 0, POLICY, STOP),
        (CHIEF, 143, POLICY, STOP),
        (CHIEF, 1, POLICY, STOP),
        (CHIEF, 2, POLICY, STOP),
        (CHIEF, KILLED, POLICY, ALL),
        (CHIEF, 75, POLICY, ALL),
        (CHIEF, KILLED, NEVER, STOP),
        (WORKER, 0, POLICY, CONTINUE),
        (WORKER, 143, POLICY, CONTINUE),
        (WORKER, 1, POLICY, STOP),
        (WORKER, KILLED, POLICY, ALONE),
        (WORKER, -signal.SIGSEGV, POLICY, ALONE),
        (WORKER, 75, POLICY, ALONE),
        (WORKER, KILLED, TOGETHER, ALL),
        (WORKER, KILLED, NEVER, STOP),
        (PS, KILLED, POLICY, ALL),
        (PS, 0, POLICY, CONTINUE),
    ],
)
def test_the_end_of_a_task(task, exit_code, policy, decision):
    assert decided(task, exit_code, policy) is decision


@pytest.mark.parametrize(
    ("more", "decision"),
    [
        ({"is_stopping": True}, CONTINUE),
        ({"has_begun": False}, STOP),
        ({"is_over": True}, CONTINUE),
        ({"num_spent": 2}, STOP),
        ({"num_spent": 2, "policy": CAN_SHRINK}, WITHOUT),
        ({"num_spent": 2, "policy": CAN_SHRINK, "num_workers": 1}, STOP),
        ({"num_spent": 1, "policy": CAN_SHRINK}, ALL),
    ],
)
def test_when_a_lost_worker_ends_the_run(more, decision):
    more = {"policy": TOGETHER, **more}
    assert decided(WORKER, KILLED, more.pop("policy"), **more) is decision


@pytest.mark.parametrize(("ready", "decision"), [(True, ALONE), (False, STOP)])
def test_who_restarts_alone_must_have_been_ready_once(ready, decision):
    assert decided(WORKER, KILLED, has_begun=False, ready=ready) is decision


def test_a_chief_that_is_a_worker_never_restarts_alone():
    assert decided(WORKER, KILLED, chief=WORKER) is ALL


@pytest.mark.parametrize(("is_consequence", "decision"), [(True, ALL), (False, STOP)])
def test_an_error_of_its_own_is_not_repeated(is_consequence, decision):
    said = Failure(
        task=CHIEF, type="ValueError", message="", at_s=0.0, is_consequence=is_consequence
    )
    assert decided(CHIEF, 75 if is_consequence else 1, failure=said) is decision
    assert decided(CHIEF, -signal.SIGABRT, failure=said) is decision


@pytest.mark.parametrize(
    ("exit_code", "was_signalled", "number"),
    [
        (143, False, signal.SIGTERM),
        (-signal.SIGTERM, False, signal.SIGTERM),
        (130, False, signal.SIGINT),
        (143, True, None),
        (0, False, None),
        (KILLED, False, None),
    ],
)
def test_a_task_that_somebody_else_has_stopped(exit_code, was_signalled, number):
    end = TaskEnd(task=WORKER, exit_code=exit_code, at_s=0.0, was_signalled=was_signalled)
    assert stop_signal_of(end) == number


def test_a_task_that_was_killed_for_a_restart_may_have_been_stopped_before():
    end = TaskEnd(task=WORKER, exit_code=-signal.SIGTERM, at_s=0.0, was_stopped=True)
    assert stop_signal_of(end) == signal.SIGTERM


def test_a_stop_counts_in_place_of_a_restart_and_not_once_all_end():
    assert [reason for reason in (None, *Reason) if heeds_stop(reason)] == [None, Reason.RESTART]


@pytest.mark.parametrize("stop", [143, -signal.SIGTERM, 130, -signal.SIGINT])
def test_of_what_ends_together_a_stop_is_looked_at_first(stop):
    ended = [("ps-0", KILLED), ("worker-0", stop), ("worker-1", 75)]
    assert [task for task, _ in stops_first(ended)] == ["worker-0", "ps-0", "worker-1"]


def test_restarts_are_forgiven_when_the_run_got_further_than_before():
    budget = RestartBudget(TOGETHER)
    budget.note_progress(10)
    budget.spend()
    budget.note_progress(10)  # What it had before its loss.
    assert budget.num_left == 1
    budget.spend()
    assert budget.num_left == 0
    budget.note_progress(20)
    assert budget.num_left == 2
    budget.spend()
    budget.spend(is_smaller=True)
    assert budget.num_left == 2


def test_a_cause_tells_of_restarts_in_vain():
    budget = RestartBudget(TOGETHER)
    cause = Cause(task=WORKER, type="TaskDied", message="Gone.", exit_code=1, is_silent=True)
    assert budget.explain(cause) == cause
    budget.spend()
    budget.spend()
    assert budget.explain(cause).message == (
        "Gone. Gave up after 2 restarts without progress between (cluster.max_restarts)."
    )


def find_ports(host, num):
    assert host == "127.0.0.1"
    return tuple(range(9000, 9000 + num))


def test_the_next_attempt_asks_for_the_same_on_other_ports(tmp_path):
    requests = make_requests({}, tmp_path / "asked", worker=2, ps=1)
    made = Path("made")
    following = next_requests(requests, Restart(lost=PS), run_dir=made, find_ports=find_ports)
    assert [request.task for request in following] == [request.task for request in requests]
    spec = following[0].spec
    addresses = [spec.address(task) for task in spec.tasks()]
    assert addresses == [f"127.0.0.1:{port}" for port in range(9000, 9004)]
    assert all(request.spec is spec for request in following)
    assert {(r.attempt, r.run_dir, r.may_rename_run_dir) for r in following} == {(1, "made", False)}
    again = next_requests(following, Restart(lost=PS), run_dir=made, find_ports=find_ports)
    assert {request.attempt for request in again} == {2}


def test_a_worker_that_is_left_out_makes_the_others_close_ranks(tmp_path):
    requests = make_requests({}, tmp_path, chief=0, worker=3)
    lost = requests[0].task
    following = next_requests(
        requests, Restart(lost=lost, without=lost), run_dir=tmp_path, find_ports=find_ports
    )
    assert [str(request.task) for request in following] == ["worker-0", "worker-1"]
    assert following[0].spec.as_dict() == {"worker": ["127.0.0.1:9000", "127.0.0.1:9001"]}


def test_a_run_of_one_task_needs_no_port(tmp_path):
    [request] = make_requests({}, tmp_path)
    alone = request.spec.__class__({TaskType.CHIEF: ("127.0.0.1:0",)})
    request = request.__class__(**{**request.__dict__, "spec": alone})
    [following] = next_requests(
        [request], Restart(lost=CHIEF), run_dir=tmp_path, find_ports=find_ports
    )
    assert following.spec == alone
