"""What the events of a run folder tell of earlier attempts."""

import json

import pytest

from kdist.assembly.history import History, history_of, read_history
from kdist.cluster.task import Task, TaskType

CHIEF = Task(TaskType.CHIEF, 0)
START = {"event": "task_started", "task": "chief-0"}
OTHER = {"event": "task_started", "task": "worker-0"}
LOST = {"event": "task_lost", "task": "worker-0"}
BACK = {"event": "task_rejoined", "task": "worker-0"}
NO_SERVER = {"event": "task_lost", "task": "ps-0"}


def ended(status):
    return {"event": "run_ended", "status": status}


@pytest.mark.parametrize(
    ("events", "num_restarts", "num_workers_lost"),
    [
        ([], 0, 0),
        ([START, OTHER], 1, 0),
        ([START, LOST, NO_SERVER, ended("failed")], 1, 1),
        ([START, LOST, START, LOST], 2, 2),
        ([START, LOST, BACK, ended("stopped")], 1, 1),
        ([START, ended("stopped")], 0, 0),
        ([START, START, ended("completed")], 1, 0),
    ],
)
def test_starts_after_a_loss_are_counted(events, num_restarts, num_workers_lost):
    assert history_of(events, CHIEF) == History(num_restarts, num_workers_lost)


def test_a_new_folder_has_no_history(tmp_path):
    file = tmp_path / "events.jsonl"
    assert read_history(file, CHIEF) == History()
    file.write_text(json.dumps({"time": 1, **START}) + "\n")
    assert read_history(file, CHIEF) == History(1, 0)
