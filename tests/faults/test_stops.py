"""A signal to the launcher or to any task stops all tasks at one step, saved."""

import signal

import pytest

from tests.e2e.kit import leftovers

from .kit import check_counts, held_at, unexpected_files
from .modes import MODES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]
slow = pytest.mark.slow
SINGLE, MULTIWORKER, PS = MODES["single"], MODES["multiworker"], MODES["ps"]


@pytest.mark.parametrize(
    ("mode", "task", "name"),
    [
        pytest.param(SINGLE, "chief-0", "SIGTERM", marks=slow),
        pytest.param(MULTIWORKER, "worker-0", "SIGTERM", marks=slow),
        pytest.param(MULTIWORKER, "worker-1", "SIGINT", marks=slow),
        pytest.param(PS, "chief-0", "SIGINT", marks=slow),
        (PS, "worker-1", "SIGTERM"),
        pytest.param(PS, "ps-0", "SIGTERM", marks=slow),
    ],
    ids=str,
)
def test_a_stopped_task_stops_all_and_the_same_command_finishes_the_run(
    start, bench, mode, task, name
):
    stopped = start(mode)
    assert stopped.wait_for_epochs(3)
    stopped.strike(task, getattr(signal, name))
    result = stopped.wait_for_the_end(45)
    assert stopped.command.code == {"SIGTERM": 143, "SIGINT": 130}[name]
    assert (result["status"], result["error"], result["workers_lost"]) == ("stopped", None, 0)
    assert result["batches_seen"] == result["global_step"] < 600
    assert leftovers(stopped.command) == {}
    assert unexpected_files(stopped.run.path) == []
    saved = [e["step"] for e in stopped.events_of("checkpoint_saved")]
    assert saved[-1] == result["batches_seen"]

    again = start(mode)
    result = again.wait_for_the_end()
    assert (again.command.code, result["status"]) == (0, "completed")
    check_counts(result, again.run, 60)


@slow  # tests/engine abandons validations in one process.
@pytest.mark.parametrize(
    ("mode", "task"),
    [(MULTIWORKER, "worker-1"), (MODES["ps_sync"], "ps-0"), (MODES["ps_between"], "worker-1")],
    ids=str,
)
def test_all_tasks_abandon_a_validation_that_is_run_again_later(start, mode, task):
    """Which is the first one here, whose first stretch is a batch on each worker."""
    argv = ("data.batch_size=32", *held_at("on_test_begin", 0))
    stopped = start(mode, *argv, epochs=2)
    stopped.wait_until_held()
    stopped.strike(task, signal.SIGTERM)
    stopped.let_go()
    result = stopped.wait_for_the_end(45)
    assert (stopped.command.code, result["status"], result["batches_seen"]) == (143, "stopped", 20)
    assert stopped.run.rows[0].get("val_loss", "") == ""
    assert leftovers(stopped.command) == {}
    again = start(mode, *argv, epochs=2)
    result = again.wait_for_the_end()
    assert (again.command.code, result["status"]) == (0, "completed")
    assert (result["resumed_from_step"], result["global_step"]) == (20, 40)
    assert all(float(row["val_loss"]) > 0 for row in again.run.rows)


@slow
@pytest.mark.parametrize("mode", [SINGLE, MULTIWORKER, PS], ids=str)
def test_stopped_tasks_too_go_with_a_killed_launcher(start, mode):
    faulty = start(mode, epochs=2000)
    assert faulty.wait_for_epochs(2)
    for task in mode.tasks:
        faulty.strike(task, signal.SIGSTOP)
    faulty.command.process.kill()
    faulty.command.wait(10)
    assert leftovers(faulty.command, within_s=10) == {}
