"""What a run folder's events tell of restarts and losses: a launcher's, or those of all starts."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdist.cluster.task import Task, TaskType
from kdist.records.events import read_events
from kdist.records.launch_story import LaunchStory, read_story
from kdist.records.result import COMPLETED, STOPPED


@dataclass(frozen=True)
class History:
    """Restarts after losses, the one under way included, and workers lost before it."""

    num_restarts: int = 0
    num_workers_lost: int = 0


def launched_story(events_jsonl: Path, since_s: float, *, attempt: int) -> LaunchStory:
    """Return what the launcher, which began then, has written so far; at least this attempt."""
    story = LaunchStory()
    with contextlib.suppress(OSError, ValueError, KeyError):
        story = read_story(events_jsonl, since_s)
    story.num_restarts = max(story.num_restarts, attempt)
    return story


def read_history(events_jsonl: Path, chief: Task) -> History:
    """Return the history of a run that starts now; nothing of it has been written yet."""
    if not events_jsonl.exists():
        return History()
    return history_of(read_events(events_jsonl), chief)


def history_of(events: Iterable[Mapping[str, Any]], chief: Task) -> History:
    """Count what followed a loss; a start after a run that ended well is the user's own wish."""
    num_restarts = num_workers_lost = 0
    is_interrupted = False
    for event in events:
        name, task = event["event"], str(event.get("task"))
        if name == "task_started" and task == str(chief):
            num_restarts += is_interrupted
            is_interrupted = True
        elif name == "run_ended":
            is_interrupted = event.get("status") not in (COMPLETED, STOPPED)
        elif name == "task_rejoined":
            num_restarts += 1
        elif name == "task_lost":
            num_workers_lost += task.startswith(f"{TaskType.WORKER}-")
    return History(num_restarts + is_interrupted, num_workers_lost)
