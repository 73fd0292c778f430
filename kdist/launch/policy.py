"""How tasks ended, and whose fault a failure was. Pure decisions."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from kdist.cluster.task import Task

STOPPED_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_KNOWN_CODES = (1, 2, 75)
_PEER_LOST_CODE = 75


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What a task said about its own failure."""

    task: Task
    type: str
    message: str
    at_s: float
    is_consequence: bool = False
    exit_code: int = 1
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskEnd:
    """A task process has ended.

    Attributes:
        task: Which one.
        exit_code: Negative for the signal that killed it.
        at_s: When.
        failure: What it said before, if anything.
        was_ready: Whether it had joined the run: a start-up error would only repeat itself.
        was_stopped: Whether the launcher had already told it to end, or killed it.
        was_signalled: Whether a SIGINT or SIGTERM to it has been taken in already.
        silence_s: How long it had shown no sign of life when it was killed for that.
        left_early: Whether its process ended with exit code 0, as by `os._exit`, before it was
            done; `exit_code` is 1 then.
    """

    task: Task
    exit_code: int
    at_s: float
    failure: Failure | None = None
    was_ready: bool = False
    was_stopped: bool = False
    was_signalled: bool = False
    silence_s: float | None = None
    left_early: bool = False

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.left_early:
            return "ended with exit code 0 before it was done (os._exit?)"
        if self.silence_s is None:
            return describe_exit(self.exit_code)
        return (
            f"showed no sign of life for {self.silence_s:.0f} s (cluster.heartbeat_timeout_s) "
            "and was killed"
        )


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a run failed: the first fault, not what followed from it."""

    task: Task
    type: str
    message: str
    exit_code: int
    traceback: str = ""
    is_silent: bool = False  # The task died without a word: its last output may tell more.
    is_consequence: bool = False


def root_cause(failures: Iterable[Failure], ends: Iterable[TaskEnd]) -> Cause | None:
    """Return the earliest fault that did not follow from another one.

    Args:
        failures: What tasks said, also those that still run.
        ends: The ends of tasks, without those that were made good by a restart.

    Returns:
        The cause; one that is itself a consequence only where nothing better is known; `None`
        where nothing went wrong.
    """
    # Of what was found together, a death by signal came first: it is what others report about.
    candidates = [(failure.at_s, 1, _cause_of_failure(failure)) for failure in failures]
    for end in ends:
        if end.failure is None and not end.was_stopped and is_abnormal(end.exit_code):
            candidates.append((end.at_s, int(end.exit_code > 0), _cause_of_end(end)))
    if not candidates:
        return None
    return min(candidates, key=lambda item: (item[2].is_consequence, *item[:2]))[2]


def is_abnormal(exit_code: int) -> bool:
    """Whether a process that ended so has failed (a stop on request is no failure)."""
    return exit_code not in (0, *STOPPED_CODES)


def describe_exit(exit_code: int) -> str:
    """Return in words how a process ended, such as `was killed by SIGKILL (out of memory?)`."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def run_exit_code(
    *, chief_exit_code: int | None, cause: Cause | None, stop_signal: int | None
) -> int:
    """Return the launcher's exit code.

    Args:
        chief_exit_code: How the chief ended; `None` if it never started.
        cause: Why the run failed, if it did.
        stop_signal: The signal that the launcher was stopped with, if any.
    """
    if cause is not None:
        return cause.exit_code
    if chief_exit_code == 0:
        return 0
    if stop_signal is not None:
        return 128 + stop_signal
    return chief_exit_code if chief_exit_code in STOPPED_CODES else 1


def _cause_of_failure(failure: Failure) -> Cause:
    return Cause(
        task=failure.task,
        type=failure.type,
        message=failure.message,
        exit_code=failure.exit_code if failure.exit_code in _KNOWN_CODES else 1,
        traceback=failure.traceback,
        is_consequence=failure.is_consequence,
    )


def _cause_of_end(end: TaskEnd) -> Cause:
    return Cause(
        task=end.task,
        type="TaskDied",
        message=f"{end.task} {end.how} without a report.",
        exit_code=end.exit_code if end.exit_code in _KNOWN_CODES else 1,
        is_silent=True,
        is_consequence=end.exit_code == _PEER_LOST_CODE,
    )
