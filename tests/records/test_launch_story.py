"""Restarts and losses, counted from a launcher's events."""

import json

import pytest

from kdist.records.launch_story import LaunchStory, read_story

TASKS = ("worker-0", "worker-1")


def happened(event, task=None, **fields):
    return {"event": event, **({} if task is None else {"task": task}), **fields}


STARTED = [happened("task_started", task) for task in TASKS]
LOST = happened("task_lost", "worker-1")
NO_SERVER = happened("task_lost", "ps-0")
FAILED = happened("run_failed", "worker-1", type="TaskDied", message="Gone.")


def all_again(attempt):
    restarted = [happened("task_restarted", task, attempt=attempt) for task in TASKS]
    return [happened("run_restarted", attempt=attempt), *restarted]


def alone(attempt=None):
    more = {} if attempt is None else {"attempt": attempt}
    return happened("task_restarted", "worker-1", **more)


@pytest.mark.parametrize(
    ("events", "num_restarts", "num_workers_lost"),
    [
        ([], 0, 0),
        (STARTED, 0, 0),
        ([*STARTED, LOST, alone()], 1, 1),
        ([*STARTED, LOST, alone(), happened("task_rejoined", "worker-1")], 1, 1),
        ([*STARTED, NO_SERVER, *all_again(1)], 1, 0),
        ([*STARTED, LOST, *all_again(1), LOST, *all_again(2)], 2, 2),
        ([*STARTED, NO_SERVER, *all_again(1), LOST, alone(1), LOST, alone(1)], 3, 2),
        ([*STARTED, LOST, alone(), *STARTED], 0, 0),
    ],
)
def test_restarts_and_lost_workers(events, num_restarts, num_workers_lost):
    story = LaunchStory()
    for event in events:
        story.note(event["event"], event)
    assert (story.num_restarts, story.num_workers_lost) == (num_restarts, num_workers_lost)


def test_a_failure_is_of_this_launch_only(tmp_path):
    path = tmp_path / "events.jsonl"
    assert read_story(path, 0.0).failure is None
    times = enumerate([FAILED, *STARTED, LOST, FAILED])
    lines = [json.dumps({"time": at_s, **event}) + "\n" for at_s, event in times]
    path.write_text("".join(lines[:1]))
    assert read_story(path, 0.5).failure is None
    path.write_text("".join(lines[:3]))
    assert read_story(path, 0.0).failure is None
    path.write_text("".join(lines))
    story = read_story(path, 0.5)
    assert (story.failure["task"], story.num_workers_lost) == ("worker-1", 1)
