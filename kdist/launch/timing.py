"""How long a stopping run gives its tasks. Pure decisions."""

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds that tasks get.

    Attributes:
        stop_grace_s: To end by themselves when the chief is done, or after a signal.
        failure_grace_s: To end after SIGTERM when the run has failed; at most `stop_grace_s`.
        lost_grace_s: The same, when the chief is dead.
        terminate_grace_s: Between SIGTERM and SIGKILL.
        settle_s: For the root cause to show, where only a consequence is known.
        leave_s: To leave after a task said that it has failed or finished.
        heartbeat_timeout_s: Without a sign of life, before a task counts as lost.
    """

    stop_grace_s: float = 30.0
    failure_grace_s: float = 10.0
    lost_grace_s: float = 2.0
    terminate_grace_s: float = 5.0
    settle_s: float = 3.0
    leave_s: float = 10.0
    heartbeat_timeout_s: float = 30.0


class Reason(Enum):
    """Why all tasks must end."""

    DONE = auto()
    FAILED = auto()
    CHIEF_LOST = auto()  # Failed, and nobody is left who could save anything.
    RESTART = auto()  # All tasks are to start again from the last checkpoint.
    SIGNAL = auto()
    SECOND_SIGNAL = auto()


@dataclass(frozen=True)
class StopPlan:
    """When tasks that still run get SIGTERM, and when SIGKILL."""

    reason: Reason
    terminate_at_s: float
    kill_at_s: float


def plan_stop(
    reason: Reason, now_s: float, timing: Timing, current: StopPlan | None = None
) -> StopPlan:
    """Return the plan for a reason to stop; a plan under way is only ever hastened."""
    failure_grace_s = min(timing.failure_grace_s, timing.stop_grace_s)
    delays = {
        Reason.DONE: (timing.stop_grace_s, timing.terminate_grace_s),
        Reason.FAILED: (0.0, failure_grace_s),
        Reason.CHIEF_LOST: (0.0, min(timing.lost_grace_s, failure_grace_s)),
        Reason.RESTART: (0.0, 0.0),
        Reason.SIGNAL: (timing.stop_grace_s, timing.terminate_grace_s),
        Reason.SECOND_SIGNAL: (0.0, 0.0),
    }
    until_terminate_s, until_kill_s = delays[reason]
    terminate_at_s = now_s + until_terminate_s
    kill_at_s = terminate_at_s + until_kill_s
    if current is not None:
        terminate_at_s = min(terminate_at_s, current.terminate_at_s)
        kill_at_s = min(kill_at_s, current.kill_at_s)
    return StopPlan(reason, terminate_at_s, kill_at_s)
