"""The chief's ties to the other tasks: it decides for all, and knows whom training needs."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from kdist.assembly.cluster_link import NOTICE_MARGIN_S, STUCK_S, later, say
from kdist.cluster.control import ControlChief
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import StrategyTraits
from kdist.config.schema import Config
from kdist.config.update_rules import shares_and_replicas
from kdist.errors import KdistError, PeerLostError, TaskTimeoutError
from kdist.training.peers import Decision

_FINISH_DEADLINE_S = 60.0
_LOOK_S = 2.0


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
        *,
        ends_frozen: bool = False,
    ):
        """Prepare the channel; `join` opens it.

        Args:
            config: The checked configuration.
            flat: The configuration as flat keys, compared over all tasks.
            traits: Of the mode.
            spec: The cluster.
            on_event: Told of "task_lost" and "task_rejoined", on the channel's thread.
            give_up: Ends this process when a needed task is lost and TensorFlow does not notice.
            ends_frozen: Whether somebody kills tasks that show no sign of life.
        """
        self._traits = traits
        self._spec = spec
        self._listeners = [on_event]
        self._give_up = give_up
        self._ends_frozen = ends_frozen
        self._error: KdistError | None = None
        self._has_error = threading.Event()
        self._heartbeat_s = config.cluster.heartbeat_timeout_s
        self._notice_s = self._heartbeat_s + NOTICE_MARGIN_S
        self._is_over = False
        self._lost_at_s: dict[Task, float] = {}
        self._alone_limit_s = config.cluster.start_timeout_s
        self._num_needed = _num_needed(config, traits, spec)
        self.num_workers_lost = 0
        self.num_rejoined = 0
        self._control = ControlChief(
            spec,
            flat,
            start_timeout_s=config.cluster.start_timeout_s,
            lost_timeout_s=config.cluster.heartbeat_timeout_s,
            say=say,
            key=config.cluster.key,
            rejoins=traits.restarts_alone,
            on_lost=self._lose,
            on_rejoined=self._regain,
        )

    @property
    def losses(self) -> tuple[Task, ...]:
        """Return every loss since the start, in order; a task that was lost twice stands twice."""
        return self._control.lost_peers

    def join(self) -> None:
        """Wait until every task is there, then let all start their TensorFlow servers."""
        self._control.rendezvous()

    def ready(self) -> None:
        """Tell the others that the start is over."""
        self._control.ready()

    def agree(self, decision: Decision) -> Decision:
        """Tell every training task; a peer that was told to stop is heard."""
        if "stop" in decision:
            decision = {**decision, "stop": decision["stop"] or self._control.stop_reason}
        if self._traits.has_peers:
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
        """Raise if a task is lost that training cannot do without, or too many workers for long."""
        if self._error is not None:
            raise self._error
        lost_at_s = dict(self._lost_at_s)
        num_spare = self._spec.num(TaskType.WORKER) - self._num_needed
        if len(lost_at_s) <= num_spare:
            return
        too_few_since_s = sorted(lost_at_s.values())[num_spare]
        if time.monotonic() - too_few_since_s > self._alone_limit_s:
            names = ", ".join(str(task) for task in sorted(lost_at_s))
            needed = "a worker" if self._num_needed == 1 else f"the {self._num_needed} workers "
            needed += "" if self._num_needed == 1 else "that an update needs"
            raise PeerLostError(
                f"Gave up after {self._alone_limit_s:g} s (cluster.start_timeout_s) without "
                f"{needed}: {names} were lost and did not come back."
            )

    def leave(self, exit_code: int, *, has_ended: bool) -> None:
        """Wait for the others to finish (if all went well), then tell how the run ended.

        Only the first call counts.
        """
        if self._is_over:
            return
        self._is_over = True
        try:
            if has_ended and len(self._traits.trains_on) > 1:
                self._await_others()
        finally:
            self._control.done(exit_code)

    def _await_others(self) -> None:
        """Let nobody leave before the others. Who is lost now has done its part: all is written.

        Who is only starting again has none, and hears of the end on its way.
        """
        end_s = time.monotonic() + _FINISH_DEADLINE_S
        while others := self._others_that_train():
            left_s = end_s - time.monotonic()
            try:
                return self._control.wait_finished(max(0.0, min(left_s, _LOOK_S)), others)
            except PeerLostError as error:
                say(f"{error} The run was over by then.")
                self._lost_at_s |= dict.fromkeys(self._control.missing_peers, time.monotonic())
            except TaskTimeoutError:
                names = ", ".join(map(str, others))
                lost = [t for t in self._control.missing_peers if t.type is TaskType.PS]
                if lost:  # A call to it may never return.
                    return say(f"{names} cannot end: {lost[0]} was lost. The run was over by then.")
                if left_s <= _LOOK_S:
                    return say(
                        f"Gave up after {_FINISH_DEADLINE_S:g} s waiting for {names} to end."
                    )
        return None

    def _others_that_train(self) -> list[Task]:
        """Return the other tasks that train and are there."""
        starting = self._control.starting_peers
        return [
            task
            for task in self._spec.tasks()
            if task.type in self._traits.trains_on
            and task != self._spec.chief
            and task not in self._lost_at_s
            and task not in starting
        ]

    def _tell(self, event: str, task: Task) -> None:
        for listener in self._listeners:
            listener(event, task)

    def _regain(self, task: Task) -> None:
        self._lost_at_s.pop(task, None)
        self.num_rejoined += 1
        self._tell("task_rejoined", task)

    def _lose(self, task: Task) -> None:
        if self._is_over:
            return
        self.num_workers_lost += task.type is TaskType.WORKER
        self._tell("task_lost", task)
        if task.type in self._traits.restarts_alone and not self._is_stuck_with(task):
            self._lost_at_s[task] = time.monotonic()
            return
        why = ""
        if self._control.is_silent(task):
            why = f": no sign of life for {self._heartbeat_s:g} s (cluster.heartbeat_timeout_s)"
        error = PeerLostError(f"{task} ({self._spec.address(task)}) was lost{why}.")
        self._error = error
        self._has_error.set()
        later(STUCK_S, lambda: self._is_over or self._give_up(error))

    def _is_stuck_with(self, task: Task) -> bool:
        """Whether a step waits for a lost task for ever: a call to a frozen one never fails."""
        is_awaited = self._traits.needs_coordinator and not self._ends_frozen
        return is_awaited and self._control.is_silent(task)


def _num_needed(config: Config, traits: StrategyTraits, spec: ClusterSpec) -> int:
    """Return how many workers training cannot do without."""
    if traits.has_followers or not spec.num(TaskType.WORKER):
        return 0  # The chief computes as well.
    if traits.aggregates:
        return shares_and_replicas(config.strategy, spec.num(TaskType.WORKER))[0]
    return 1
