"""What a task is asked to do, and how it talks back to the launcher that started it."""

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task


@dataclass(frozen=True, kw_only=True)
class Console:
    """The user's terminal, or pipe, that the chief's report reaches through the launcher."""

    is_terminal: bool = False
    width: int = 80
    color: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskRequest:
    """Everything that one task gets; it never sees the user's command line. Picklable.

    Attributes:
        config: The resolved configuration, in plain containers.
        config_yaml: The content of the run folder's config.yaml (unresolved).
        typed_keys: Keys that the user typed.
        spec: All tasks and their addresses.
        task: Which of them this is.
        run_dir: Where the run folder will be.
        may_rename_run_dir: Whether a taken `run_dir` may be replaced by the next free name.
        num_devices: Devices that the task's replicas run on; 0 for a task that computes nothing.
        accelerators: Indices of the accelerators that it may use; empty hides all of them.
        notes: What the user may not expect, a sentence each.
        started_at_s: When the user's command began, in seconds since the epoch.
        attempt: How many times all tasks of the run were started before, after losses; from 1 on
            `run_dir` is the folder that the run has made, and training goes on from its newest
            checkpoint.
        is_local: Whether a launcher on this machine started (and watches) the task.
        choice_line: Why this strategy.
        console: Where the chief's report goes.
        objects: What `kdist.fit` was given (functions, arrays, ...), by cloudpickle.
    """

    config: Mapping[str, Any]
    config_yaml: str
    typed_keys: tuple[str, ...]
    spec: ClusterSpec
    task: Task
    run_dir: str
    is_local: bool
    choice_line: str = ""
    console: Console = field(default_factory=Console)
    objects: bytes | None = None
    may_rename_run_dir: bool = True
    num_devices: int = 1
    accelerators: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    started_at_s: float = field(default_factory=time.time)
    attempt: int = 0


ALIVE = "alive"  # The event by which a task process shows that it lives.


class LauncherLink(Protocol):
    """How a task tells its launcher what happens.

    Events that the launcher knows:
        run_folder_ready: `run_dir`, if it is another one than the request's. The launcher opens
            logs/ and events.jsonl there. Sent by the chief.
        task_ready: This task has joined; from here on it may be restarted.
        progressed: `batches_seen` are kept: an epoch has ended, a checkpoint was saved. Sent by
            the chief; restarts before a run's furthest progress count as one row of failures.
        run_ended: `status`. The result is written; a completed run loses nothing any more.
        task_rejoined: `task`, which the chief has met again after a loss.
        signalled: `number` of a SIGINT or SIGTERM that came to this task, by whoever sent it.
        failed: `type`, `message`, `is_consequence` (of another task's failure), `traceback`,
            `exit_code`. What an exception out of the task's main function also becomes.
        finished: `exit_code`. All is written; what happens to the process now does not matter.
    """

    def send(self, event: str, **fields: Any) -> None:
        """Tell the launcher; never raises, and never waits for an answer."""
        ...


class NullLink:
    """The link of a task that no launcher started."""

    def send(self, event: str, **fields: Any) -> None:
        """Tell nobody."""


class PipeLink:
    """Writes events to a pipe, one JSON object a line."""

    def __init__(self, descriptor: int) -> None:
        """Remember the pipe's write end."""
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, event: str, **fields: Any) -> None:
        """Write one line; a launcher that is gone is no error here."""
        line = json.dumps({"event": event, **fields}, default=str).encode() + b"\n"
        with self._lock:
            while line:
                try:
                    line = line[os.write(self._descriptor, line) :]
                except OSError:
                    return
