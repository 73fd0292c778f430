"""Tasks of a foreign scheduler: who loses another one asks to be started again, and goes on."""

import signal

import pytest

from .kit import check_counts, held_at, unexpected_files
from .modes import MODES

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]
MULTIWORKER, PS = MODES["multiworker"], MODES["ps"]


def check_completed(scheduled):
    result = scheduled.look_after_to_the_end()
    assert (result["status"], result["error"]) == ("completed", None)
    check_counts(result, scheduled.run, scheduled.epochs)
    assert unexpected_files(scheduled.run.path) == []
    assert {codes[-1] for codes in scheduled.codes.values()} == {0}
    return result


@pytest.mark.parametrize(
    ("mode", "task"),
    [(MULTIWORKER, "worker-1"), (MULTIWORKER, "worker-0"), (PS, "ps-0"), (PS, "chief-0")],
    ids=str,
)
def test_all_are_started_again_and_the_run_resumes_by_itself(schedule, mode, task):
    scheduled = schedule(mode)
    scheduled.look_after_until(lambda: scheduled.epochs_ended() >= 3, 90, "3 epochs")
    scheduled.strike(task)
    result = check_completed(scheduled)
    assert scheduled.codes.pop(task) == [-signal.SIGKILL, 0]
    assert all(codes == [75, 0] for codes in scheduled.codes.values()), scheduled.codes
    assert (result["restarts"], result["resumed_from_step"] > 0) == (1, True)


def test_a_worker_that_is_started_again_rejoins(schedule):
    scheduled = schedule(PS, *held_at("on_epoch_end", 2), epochs=6)
    scheduled.look_after_until((scheduled.folder / "held").exists, 90, "the third epoch ends")
    scheduled.strike("worker-1")
    scheduled.look_after_until(lambda: scheduled.has_event("task_rejoined"), 90, "it rejoins")
    scheduled.let_go()
    result = check_completed(scheduled)
    assert scheduled.codes.pop("worker-1") == [-signal.SIGKILL, 0]
    assert all(codes == [0] for codes in scheduled.codes.values()), scheduled.codes
    assert (result["workers_lost"], result["resumed_from_step"]) == (1, None)


@pytest.mark.parametrize(("mode", "task"), [(MULTIWORKER, "worker-1"), (PS, "worker-0")], ids=str)
def test_a_frozen_task_is_named_and_all_others_ask_to_start_again(schedule, mode, task):
    scheduled = schedule(mode, epochs=2000)
    scheduled.look_after_until(lambda: scheduled.epochs_ended() >= 3, 90, "3 epochs")
    scheduled.strike(task, signal.SIGSTOP)
    chief = scheduled.command(mode.chief)
    chief.wait(60)
    assert chief.code == 75
    assert f"{task} " in chief.stderr and "no sign of life for 8 s" in chief.stderr


def test_a_configuration_error_on_the_chief_ends_all_soon(schedule):
    """Only the chief reads the weights to start from."""
    scheduled = schedule(MULTIWORKER, "init_from=missing.keras")
    commands = [scheduled.command(task) for task in MULTIWORKER.tasks]
    for command in commands:
        command.wait(60)
    chief, other = commands
    assert chief.code == other.code == 2
    assert "missing.keras" in chief.stderr
    assert other.seconds - chief.seconds < 6


@pytest.mark.parametrize(("mode", "task"), [(MULTIWORKER, "worker-1"), (PS, "worker-1")], ids=str)
def test_a_task_that_is_told_to_stop_stops_all(schedule, mode, task):
    scheduled = schedule(mode, epochs=2000)
    scheduled.look_after_until(lambda: scheduled.epochs_ended() >= 3, 90, "3 epochs")
    scheduled.strike(task, signal.SIGTERM)
    result = scheduled.look_after_to_the_end(60)
    assert {name: codes for name, codes in scheduled.codes.items() if codes != [143]} == {}
    assert (result["status"], result["workers_lost"]) == ("stopped", 0)


def test_the_events_tell_who_started(schedule):
    scheduled = schedule(MULTIWORKER, epochs=2)
    check_completed(scheduled)
    started = [e["task"] for e in scheduled.run.events if e["event"] == "task_started"]
    assert started == ["worker-0", "worker-1"]
