"""Every task that a run can lose, in every mode: the run recovers, and does each step once."""

import signal

import pytest

from tests.e2e.kit import wait_until

from .kit import HEARTBEAT_S, check_completed, held_at
from .modes import MODES

# tests/chaos has one short run of each mode.
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(170)]
SINGLE, MIRRORED = MODES["single"], MODES["mirrored"]
MULTIWORKER, PS, PS_SYNC = MODES["multiworker"], MODES["ps"], MODES["ps_sync"]
BETWEEN, BETWEEN_SYNC = MODES["ps_between"], MODES["ps_between_sync"]


@pytest.mark.parametrize(
    ("mode", "task"),
    [
        (SINGLE, "chief-0"),
        (MIRRORED, "chief-0"),
        (MULTIWORKER, "worker-1"),
        (MULTIWORKER, "worker-0"),
        (PS, "worker-0"),
        (PS, "ps-0"),
        (PS, "chief-0"),
        (PS_SYNC, "worker-1"),
        (PS_SYNC, "ps-0"),
        (BETWEEN, "worker-0"),
        (BETWEEN, "worker-1"),
        (BETWEEN, "ps-0"),
        (BETWEEN_SYNC, "worker-1"),
        (BETWEEN_SYNC, "ps-0"),
    ],
    ids=str,
)
def test_a_killed_task_costs_no_update(start, mode, task):
    faulty = start(mode)
    assert faulty.wait_for_epochs(3)
    struck_s = faulty.strike(task)
    assert faulty.wait_until_recovered(struck_s) is not None
    result = check_completed(faulty)
    is_worker = task.startswith("worker")
    assert (result["restarts"], result["workers_lost"]) == (1, int(is_worker))
    [lost] = faulty.events_of("task_lost")
    assert (lost["task"], lost["exit_code"]) == (task, -signal.SIGKILL)
    restarted = [event["task"] for event in faulty.events_of("task_restarted")]
    if task in mode.alone:
        assert restarted == [task] and result["resumed_from_step"] is None
    else:
        assert restarted == mode.tasks and result["resumed_from_step"] > 0
    assert f"{task} was killed by SIGKILL" in faulty.command.stderr
    assert "Error" not in faulty.command.stderr


@pytest.mark.parametrize(
    ("mode", "task"),
    [
        (SINGLE, "chief-0"),
        (MULTIWORKER, "worker-1"),
        (PS, "worker-1"),
        (PS, "ps-0"),
        (BETWEEN, "worker-1"),
    ],
    ids=str,
)
def test_a_frozen_task_is_found_by_its_silence(start, mode, task):
    others_go_on = task in mode.alone  # And would be done before the silence is noticed.
    faulty = start(mode, *(held_at("on_epoch_end", 3) if others_go_on else ()))
    if others_go_on:
        faulty.wait_until_held()
    else:
        assert faulty.wait_for_epochs(3)
    struck_s = faulty.strike(task, signal.SIGSTOP)
    if others_go_on:
        wait_until(lambda: faulty.events_of("task_restarted"), 60, f"{task} is there again")
        faulty.let_go()
    assert faulty.wait_until_recovered(struck_s) is not None
    result = check_completed(faulty)
    assert result["restarts"] == 1
    [lost] = faulty.events_of("task_lost")
    assert lost["task"] == task
    assert lost["time"] - struck_s < HEARTBEAT_S + 3
    assert "no sign of life" in lost["message"]
    assert f"{task} showed no sign of life for {HEARTBEAT_S:g} s" in faulty.command.stderr


def test_a_worker_that_is_lost_again_and_again_is_done_without(start):
    faulty = start(MULTIWORKER, "strategy.min_workers=1", "cluster.max_restarts=1")
    assert faulty.wait_for_epochs(3)
    faulty.strike("worker-1")
    wait_until(lambda: len(faulty.events_of("task_restarted")) == 2, 60, "both are there again")
    faulty.strike("worker-1")  # Before the run has got any further.
    result = check_completed(faulty)
    assert (result["restarts"], result["workers_lost"]) == (2, 2)
    assert result["cluster"]["worker"] == 1
    assert faulty.events_of("run_restarted")[-1]["without"] == "worker-1"
