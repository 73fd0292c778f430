"""What the chief knows of every other task; shared between its main and its control thread."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kdist.cluster.control_loop import LoopThread
from kdist.cluster.control_wire import Wire
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType

_MAX_NAMED = 6


@dataclass
class Peer:
    """One other task, as the chief sees it."""

    task: Task
    address: str
    wire: Wire | None = None
    note: str = "not called yet"
    fault: str = ""  # Why it can never take part.
    config: Mapping[str, Any] | None = None  # Its configuration, where that differs.
    beat_interval_s: float = 2.0
    is_going: bool = False
    is_ready: bool = False  # Until then it may be silent for as long as the start may take.
    is_finished: bool = False
    is_lost: bool = False
    is_silent: bool = False  # Lost for that: nobody has closed the connection.
    said_goodbye: bool = False

    @property
    def is_unfit(self) -> bool:
        """Whether it answered, but cannot take part in this run."""
        return bool(self.fault) or self.config is not None


class Roster:
    """All peers, and how far the run has come. Change it with `changed` held, and notify."""

    def __init__(self, spec: ClusterSpec) -> None:
        """List everybody but the chief; evaluators are no part of the training cluster."""
        self.peers = [
            Peer(task, spec.address(task))
            for task in spec.tasks()
            if task != spec.chief and task.type is not TaskType.EVALUATOR
        ]
        self.changed = threading.Condition()
        self.has_gone = False
        self.is_ready = False  # The chief, that is.
        self.is_over = False
        self.stop_reason: str | None = None  # Why a peer asks to stop.
        self.losses: list[Task] = []
        self.loop = LoopThread("kdist-control")

    def send_all(self, message: Mapping[str, Any]) -> None:
        """Send a message to every connected peer, and return when it is sent; from any thread."""

        def send() -> None:
            for peer in self.peers:
                if peer.wire is not None:
                    peer.wire.send(message)

        if self.peers:
            self.loop.call_now(send)

    def wait_until(self, is_reached: Callable[[], bool], end_s: float, now: Callable[[], float]):
        """Wait until a condition holds or `end_s` has come; return whether it holds."""
        with self.changed:
            while not is_reached():
                if (left_s := end_s - now()) <= 0:
                    return False
                self.changed.wait(left_s)
            return True


def named(peers: Sequence[Peer]) -> str:
    """Return the peers with their addresses and what is wrong with them, for a message."""
    shown = [
        f"{peer.task} ({peer.address}{'' if peer.wire else f': {peer.note}'})"
        for peer in peers[:_MAX_NAMED]
    ]
    more = f" and {len(peers) - _MAX_NAMED} more" if len(peers) > _MAX_NAMED else ""
    return ", ".join(shown) + more


def with_tasks(peers: Collection[Peer], tasks: Collection[Task] | None) -> list[Peer]:
    """Return the peers that stand for `tasks`; all of them for `None`."""
    return [peer for peer in peers if tasks is None or peer.task in tasks]
