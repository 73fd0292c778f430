"""What a task process is asked to do, and how it answers the launcher."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task


@dataclass(frozen=True, kw_only=True)
class Console:
    """The terminal that the chief's report goes to."""

    is_terminal: bool = False
    width: int = 80
    color: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskRequest:
    """Everything that a task process needs to know; it never sees the user's argv. Picklable.

    Attributes:
        config: The resolved configuration, in plain containers.
        config_yaml: What config.yaml of the run folder gets, without secrets.
        typed_keys: Dotted keys that the user typed.
        spec: Every task of the run and its address.
        task: Who the process is.
        run_dir: Where the run folder should be.
        may_rename_run_dir: Whether a taken `run_dir` may be replaced by the next free name.
        is_local: Whether our launcher started the task (not a foreign scheduler).
        num_devices: Devices that its replicas run on.
        accelerators: Indices of the accelerators that it may use; empty hides all.
        choice_line: Which strategy was taken, and why.
        notes: What the user may not expect, a sentence each.
        console: The terminal of the chief's report.
        objects: Pickled mapping of live functions that take the place of targets (`kdist.fit`).
        started_at_s: When the user's command began, in seconds since the epoch.
    """

    config: Mapping[str, Any]
    config_yaml: str
    typed_keys: tuple[str, ...]
    spec: ClusterSpec
    task: Task
    run_dir: str
    may_rename_run_dir: bool = True
    is_local: bool
    num_devices: int = 1
    accelerators: tuple[int, ...] = ()
    choice_line: str = ""
    notes: tuple[str, ...] = ()
    console: Console = field(default_factory=Console)
    objects: bytes | None = None
    started_at_s: float = field(default_factory=time.time)


class LauncherLink(Protocol):
    """The way from a task to its launcher."""

    def send(self, event: str, **fields: Any) -> None:
        """Tell the launcher of an event.

        Args:
            event: "run_folder_ready" {run_dir}, "task_ready", "failed" {type, message, task,
                is_consequence, traceback}, "task_lost" {task}, "task_rejoined" {task}.
            **fields: What belongs to the event; plain values.
        """
        ...


class NullLink:
    """The link of a task that a foreign scheduler started: nobody listens."""

    def send(self, event: str, **fields: Any) -> None:
        """Tell nobody."""
