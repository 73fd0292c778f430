"""This task's ties to the others: coming together, agreeing, noticing losses, ending."""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kdist.cluster.control import ChiefEndedError, ControlChief, ControlPeer
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import StrategyTraits
from kdist.config.schema import Config
from kdist.errors import KdistError, PeerLostError
from kdist.training.peers import Alone, Decision, Peers

# How long TensorFlow may take to notice a lost peer by itself before this process gives up.
STUCK_S = 30.0
DECISION_DEADLINE_S = 24 * 3600.0
FINISH_DEADLINE_S = 60.0
# How much longer than the configured timeout it may take until a loss is told.
NOTICE_MARGIN_S = 5.0


class ClusterLink(Peers, Protocol):
    """The ties of one task for its whole life."""

    num_workers_lost: int
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
    is_alone = True

    def listen(self, on_event: Callable[[str, Task], None]) -> None:
        """Nothing can happen."""

    def find_lost(self) -> KdistError | None:
        """Nobody can be lost."""
        return None

    def join(self) -> None:
        """Nobody to wait for."""

    def leave(self, exit_code: int, *, has_ended: bool) -> None:
        """Nobody to tell."""


class ChiefLink:
    """The chief's ties: decides for all."""

    is_chief = True
    is_alone = False

    def __init__(
        self,
        config: Config,
        flat: Mapping[str, Any],
        traits: StrategyTraits,
        spec: ClusterSpec,
        on_event: Callable[[str, Task], None],
        give_up: Callable[[KdistError], None],
    ):
        """Prepare the channel; `join` opens it.

        Args:
            config: The checked configuration.
            flat: The configuration as flat keys, compared over all tasks.
            traits: Of the mode.
            spec: The cluster.
            on_event: Told of "task_lost" and "task_rejoined", on the channel's thread.
            give_up: Ends this process when a needed task is lost and TensorFlow does not notice.
        """
        self._traits = traits
        self._spec = spec
        self._listeners = [on_event]
        self._give_up = give_up
        self._error: KdistError | None = None
        self._has_error = threading.Event()
        self._notice_s = config.cluster.chief_lost_timeout_s + NOTICE_MARGIN_S
        self._is_over = False
        self._lost_at_s: dict[Task, float] = {}
        self._alone_limit_s = config.cluster.start_timeout_s
        self.num_workers_lost = 0
        can_rejoin = {TaskType.WORKER} if traits.needs_coordinator else set()
        self._control = ControlChief(
            spec,
            flat,
            start_timeout_s=config.cluster.start_timeout_s,
            lost_timeout_s=config.cluster.chief_lost_timeout_s,
            say=_say,
            key=config.cluster.key,
            rejoins=can_rejoin,
            on_lost=self._lose,
            on_rejoined=self._regain,
        )

    def join(self) -> None:
        """Wait until every task is there, then let all start their TensorFlow servers."""
        self._control.rendezvous()

    def agree(self, decision: Decision) -> Decision:
        """Tell every training task; a peer that was told to stop is heard."""
        if "stop" in decision:
            decision = {**decision, "stop": decision["stop"] or self._control.stop_reason}
        if len(self._traits.trains_on) > 1:
            self._control.broadcast(dict(decision))
        return decision

    def listen(self, on_event: Callable[[str, Task], None]) -> None:
        """Tell one more of what happens to other tasks."""
        self._listeners.append(on_event)

    def find_lost(self) -> KdistError | None:
        """Return the lost task that ended training; `None` if none is noticed in time."""
        self._has_error.wait(self._notice_s)
        return self._error

    def check(self) -> None:
        """Raise if a task is lost that training cannot do without, or all workers for long."""
        if self._error is not None:
            raise self._error
        lost_at_s = dict(self._lost_at_s)
        is_alone = len(lost_at_s) == self._spec.num(TaskType.WORKER) > 0
        if is_alone and time.monotonic() - max(lost_at_s.values()) > self._alone_limit_s:
            names = ", ".join(str(task) for task in sorted(lost_at_s))
            raise PeerLostError(
                f"Gave up after {self._alone_limit_s:g} s (cluster.start_timeout_s) without a "
                f"worker: {names} were lost and did not come back."
            )

    def leave(self, exit_code: int, *, has_ended: bool) -> None:
        """Wait for the others to finish (if all went well), then tell how the run ended."""
        self._is_over = True
        try:
            if has_ended and len(self._traits.trains_on) > 1:
                self._control.wait_finished(FINISH_DEADLINE_S)
        finally:
            self._control.done(exit_code)

    def _tell(self, event: str, task: Task) -> None:
        for listener in self._listeners:
            listener(event, task)

    def _regain(self, task: Task) -> None:
        self._lost_at_s.pop(task, None)
        self._tell("task_rejoined", task)

    def _lose(self, task: Task) -> None:
        if self._is_over:
            return
        self.num_workers_lost += task.type is TaskType.WORKER
        self._tell("task_lost", task)
        if self._traits.needs_coordinator and task.type is TaskType.WORKER:
            self._lost_at_s[task] = time.monotonic()
            return
        error = PeerLostError(f"{task} ({self._spec.address(task)}) was lost.")
        self._error = error
        self._has_error.set()
        _later(STUCK_S, lambda: self._is_over or self._give_up(error))


class PeerLink:
    """The ties of every other task: obeys the chief."""

    is_chief = False
    is_alone = False
    num_workers_lost = 0

    def __init__(
        self,
        config: Config,
        flat: Mapping[str, Any],
        spec: ClusterSpec,
        task: Task,
        give_up: Callable[[KdistError], None],
    ):
        """Prepare the channel; see `ChiefLink`."""
        self._give_up = give_up
        self._chief = spec.chief
        self._has_asked = False
        self._error: KdistError | None = None
        self._has_error = threading.Event()
        self._notice_s = config.cluster.chief_lost_timeout_s + NOTICE_MARGIN_S
        self._is_over = False
        self._control = ControlPeer(
            spec,
            task,
            flat,
            start_timeout_s=config.cluster.start_timeout_s,
            chief_lost_timeout_s=config.cluster.chief_lost_timeout_s,
            say=_say,
            key=config.cluster.key,
            on_lost=self._lose,
            on_ended=self._ended,
        )

    def join(self) -> None:
        """Wait for the chief's call and its go."""
        self._control.rendezvous()

    def agree(self, decision: Decision) -> Decision:
        """Return the chief's decision; it is asked to stop where this task was told to."""
        if (reason := decision.get("stop")) and not self._has_asked:
            self.ask_to_stop(reason)
        return self._control.receive_decision(DECISION_DEADLINE_S)

    def listen(self, on_event: Callable[[str, Task], None]) -> None:
        """Only the chief hears of others."""

    def find_lost(self) -> KdistError | None:
        """Return what the chief says of the loss; a chief that is lost itself ends this process."""
        self._has_error.wait(self._notice_s)
        return self._error

    def check(self) -> None:
        """Raise if the chief is gone."""
        if self._error is not None:
            raise self._error

    def ask_to_stop(self, reason: str) -> None:
        """Ask the chief to stop all tasks; safe in a signal handler."""
        self._has_asked = True
        self._control.ask_to_stop(reason)

    def wait_done(self) -> int:
        """Lend this process to the run until the chief ends it; return the chief's exit code."""
        return self._control.wait_done()

    def leave(self, exit_code: int, *, has_ended: bool) -> None:
        """Say that this task is finished, and wait for the chief's last word."""
        if has_ended:
            self._control.finished()
            self._control.wait_done()
        self._is_over = True
        self._control.close()

    def _lose(self, error: PeerLostError) -> None:
        if not self._is_over:
            self._error = error
            self._give_up(error)

    def _ended(self, exit_code: int) -> None:
        if exit_code != 0 and not self._is_over:
            error = ChiefEndedError(
                f"{self._chief} ended the run with exit code {exit_code}.", exit_code
            )
            self._error = error
            self._has_error.set()
            _later(STUCK_S, lambda: self._is_over or self._give_up(error))


def end_process(exit_code: int) -> None:
    """End this process now, whatever TensorFlow is waiting for; output is flushed first."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _later(delay_s: float, action: Callable[[], Any]) -> None:
    timer = threading.Timer(delay_s, action)
    timer.daemon = True
    timer.start()


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
