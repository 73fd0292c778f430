"""This task's ties to the others: coming together, agreeing, noticing losses, ending."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from kdist.cluster.task import Task
from kdist.errors import KdistError
from kdist.training.peers import Alone, Peers

# How long TensorFlow may take to notice a lost peer by itself before this process gives up.
STUCK_S = 15.0
# How much longer than the configured timeout it may take until a loss is told.
NOTICE_MARGIN_S = 5.0


class ClusterLink(Peers, Protocol):
    """The ties of one task for its whole life."""

    num_workers_lost: int
    num_rejoined: int
    is_alone: bool

    def listen(self, on_event: Callable[[str, Task], None]) -> None:
        """Tell `on_event`, too, of "task_lost" and "task_rejoined", on the channel's thread."""
        ...

    def find_lost(self) -> KdistError | None:
        """Return which task was lost, waiting for as long as that takes to notice."""
        ...

    def join(self) -> None:
        """Wait until every task is there."""
        ...

    def ready(self) -> None:
        """Tell the others that this task has started: from here on its silence means a loss."""
        ...

    def leave(self, exit_code: int, *, has_ended: bool) -> None:
        """Leave when nobody needs this task any more; the chief tells all how the run ended.

        Args:
            exit_code: This task's.
            has_ended: Whether training came to an end that all tasks agreed on, be it the last
                step or a stop; where it did not, nobody is waited for.
        """
        ...


class NoCluster(Alone):
    """A run of one task."""

    num_workers_lost = 0
    num_rejoined = 0
    is_alone = True

    def listen(self, on_event: Callable[[str, Task], None]) -> None:
        """Nothing can happen."""

    def find_lost(self) -> KdistError | None:
        """Nobody can be lost."""
        return None

    def join(self) -> None:
        """Nobody to wait for."""

    def ready(self) -> None:
        """Nobody to tell."""

    def leave(self, exit_code: int, *, has_ended: bool) -> None:
        """Nobody to tell."""


def end_process(exit_code: int) -> None:
    """End this process now, whatever TensorFlow is waiting for; output is flushed first."""
    with contextlib.suppress(Exception):  # Whoever read it may be gone.
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)


def later(delay_s: float, action: Callable[[], Any]) -> None:
    """Do something later, on a thread of its own that keeps no process alive."""
    timer = threading.Timer(delay_s, action)
    timer.daemon = True
    timer.start()


def say(line: str) -> None:
    """Write one line for the user; a reader that is gone ends nothing."""
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
