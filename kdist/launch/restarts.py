"""Who is started again after a loss, and how often. Pure decisions."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from kdist.cluster.task import Task, TaskType
from kdist.launch.policy import STOPPED_CODES, Cause, TaskEnd, is_abnormal
from kdist.launch.timing import Reason


class Decision(Enum):
    """What follows from the end of a task."""

    CONTINUE = auto()
    RESTART_TASK = auto()
    RESTART_ALL = auto()
    RESTART_WITHOUT = auto()  # All but the lost worker, which has used up its restarts.
    STOP_ALL = auto()


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """What the loss of a task leads to.

    Attributes:
        alone: Task types that are started again by themselves while the others go on; the loss
            of any other task restarts all of them from the last checkpoint.
        max_restarts: Restarts without progress between; 0 for none at all.
        min_workers: Fewest workers to go on with when those are used up; `None` for all.
    """

    alone: frozenset[TaskType] = frozenset()
    max_restarts: int = 0
    min_workers: int | None = None


class RestartBudget:
    """Counts restarts of a run, and forgives them once it got further than ever."""

    def __init__(self, policy: RestartPolicy) -> None:
        """Nothing has been spent."""
        self.policy = policy
        self.has_begun = False  # Whether the chief has been ready once.
        self.is_over = False  # Whether it is completed or stopped, and all of it written.
        self.num_spent = 0
        self._furthest = 0

    @property
    def num_left(self) -> int:
        """Restarts that are allowed before the run has to get further."""
        return max(0, self.policy.max_restarts - self.num_spent)

    def note_progress(self, batches_seen: int) -> None:
        """Take in that the run has kept so many batches: at an epoch's end, in a checkpoint.

        A run that only repeats what it had before its losses makes no progress.
        """
        if batches_seen > self._furthest:
            self._furthest = batches_seen
            self.num_spent = 0

    def spend(self, *, is_smaller: bool = False) -> None:
        """Take in a restart; one with fewer workers begins to count anew."""
        self.num_spent = 0 if is_smaller else self.num_spent + 1

    def explain(self, cause: Cause) -> Cause:
        """Return the cause of a run's end, with the restarts that were in vain."""
        if not (
            self.num_spent and self.num_left == 0 and (cause.is_silent or cause.is_consequence)
        ):
            return cause
        return replace(
            cause,
            message=f"{cause.message} Gave up after {self.num_spent} restarts without progress "
            "between (cluster.max_restarts).",
        )


def stop_signal_of(end: TaskEnd) -> int | None:
    """Return the signal by which somebody else stopped this task, asking the run to stop."""
    return None if end.was_signalled else _signal_in(end.exit_code)


def heeds_stop(reason: Reason | None) -> bool:
    """Whether a stop that a task was asked for stops the run.

    It does so while the run goes on, and in place of a restart: what comes together, a stop and a
    loss, means a stop in whatever order it is seen.

    Args:
        reason: Why all tasks must end by now, if they must.
    """
    return reason in (None, Reason.RESTART)


def stops_first(ended: Iterable[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """Return what has ended, with its exit code, in the order in which to look at it."""
    return sorted(ended, key=lambda each: _signal_in(each[1]) is None)


def _signal_in(exit_code: int) -> int | None:
    for number in (signal.SIGINT, signal.SIGTERM):
        if exit_code in (128 + number, -number):
            return number
    return None


def is_loss(end: TaskEnd) -> bool:
    """Whether a task vanished, or left because it lost another one; not by an error of its own."""
    if end.failure is not None:
        return end.failure.is_consequence
    return end.exit_code < 0 or end.exit_code == 75


def decide(
    end: TaskEnd,
    *,
    chief: Task,
    budget: RestartBudget,
    num_workers: int,
    is_stopping: bool,
) -> Decision:
    """Return what the end of a task means for the run.

    The run ends with its chief. Others may leave by themselves. A task that reports an error, or
    that ends before the run has begun, ends the run: to start it again would only repeat that.

    Args:
        end: The task's end.
        chief: The task that leads the run.
        budget: Who may be started again, and how often still.
        num_workers: Workers of this attempt.
        is_stopping: Whether all tasks have already been told to end.
    """
    if is_stopping:
        return Decision.CONTINUE
    if budget.is_over or end.exit_code in (0, *STOPPED_CODES):
        return Decision.STOP_ALL if end.task == chief else Decision.CONTINUE
    if not is_abnormal(end.exit_code) or not is_loss(end) or budget.policy.max_restarts == 0:
        return Decision.STOP_ALL
    is_alone = end.task.type in budget.policy.alone and end.task != chief
    if not (budget.has_begun or (is_alone and end.was_ready)):
        return Decision.STOP_ALL
    if budget.num_left > 0:
        return Decision.RESTART_TASK if is_alone else Decision.RESTART_ALL
    least = budget.policy.min_workers
    if end.task.type is TaskType.WORKER and least is not None and num_workers > least:
        return Decision.RESTART_WITHOUT
    return Decision.STOP_ALL
