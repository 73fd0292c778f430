"""How the tasks of a run came to their end."""

from collections.abc import Iterable
from dataclasses import dataclass

from kdist.cluster.task import Task
from kdist.launch import policy
from kdist.launch.member import Member
from kdist.launch.policy import Cause


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Why all tasks are started again, and whether one of them is left out."""

    lost: Task
    without: Task | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """What a supervisor has seen of one attempt.

    Attributes:
        chief_exit_code: How the chief ended; `None` if it never started.
        cause: Why the run failed, if it did.
        stop_signal: The signal that the run was stopped with, if any.
        restart: Set where the run is to go on with another attempt.
        warnings: What the user should know though the run did not fail of it.
    """

    chief_exit_code: int | None
    cause: Cause | None
    stop_signal: int | None
    restart: Restart | None
    warnings: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """The launcher's exit code."""
        return policy.run_exit_code(
            chief_exit_code=self.chief_exit_code, cause=self.cause, stop_signal=self.stop_signal
        )


def closing_warnings(members: Iterable[Member]) -> list[str]:
    """Return what went wrong with the tasks of a run that did not fail of it."""
    warnings, killed = [], []
    for member in members:
        if member.is_killed:
            killed.append(str(member.task))
        elif member.end is not None and policy.is_abnormal(member.end.exit_code):
            warnings.append(f"{member.task} {member.end.how} after the run was over.")
        if member.output.log_error:
            warnings.append(member.output.log_error)
    if killed:
        warnings.append(f"Did not end by themselves, had to be killed: {', '.join(killed)}.")
    return warnings
