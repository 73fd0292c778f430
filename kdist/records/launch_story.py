"""What a launcher's events tell of a run: how often it began again, whom it lost, why it fails.

The launcher notes each event as it writes it, and the chief reads them back, so that both say the
same of the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kdist.cluster.task import TaskType
from kdist.records.events import read_events


@dataclass(kw_only=True)
class LaunchStory:
    """A run from the start of its launcher on.

    Attributes:
        num_restarts: Restarts after losses, of one task or of all.
        num_workers_lost: Workers lost, in all attempts.
        failure: What ends the run, as `run_failed` has it; `None` while nothing does.
    """

    num_restarts: int = 0
    num_workers_lost: int = 0
    failure: Mapping[str, Any] | None = None
    _started: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]], repr=False)

    def note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take in what has happened next."""
        task, attempt = str(fields.get("task")), fields.get("attempt")
        if event == "task_started":  # Another launcher, or the first one.
            self.num_restarts = self.num_workers_lost = 0
            self.failure = None
            self._started.clear()
        elif event == "run_restarted":
            self.num_restarts += 1
        elif event == "task_restarted":
            # In each further attempt every task is started once, which is one restart in all.
            is_alone = attempt is None or (task, attempt) in self._started
            self.num_restarts += is_alone
            if attempt is not None:
                self._started.add((task, attempt))
        elif event == "task_lost":
            self.num_workers_lost += task.startswith(f"{TaskType.WORKER}-")
        elif event == "run_failed":
            self.failure = dict(fields)


def read_story(events_jsonl: Path, since_s: float) -> LaunchStory:
    """Return what the events of a run folder tell.

    Args:
        events_jsonl: The file, which may not be there.
        since_s: When the launcher began: what is older is another one's.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is damaged.
    """
    story = LaunchStory()
    for event in read_events(events_jsonl) if events_jsonl.exists() else []:
        if event["time"] >= since_s:
            story.note(event["event"], event)
    return story
