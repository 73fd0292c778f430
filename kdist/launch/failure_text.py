"""The one message of a failed run."""

from collections.abc import Sequence
from pathlib import Path

from kdist import errors
from kdist.errors import ConfigError, EnvironmentFault
from kdist.launch.policy import Cause

_SPEAKS_FOR_ITSELF = {ConfigError.__name__, EnvironmentFault.__name__, "KdistError"}
_SPEAKS_FOR_ITSELF |= {"TrainingError", "TaskTimeoutError", "PeerLostError", "TaskDied"}


def render_failure(cause: Cause, *, tail: Sequence[str], log_path: Path | None, debug: bool) -> str:
    """Return what the user reads on stderr.

    Args:
        cause: Why the run failed.
        tail: The last lines that the task printed; shown where it died without a word.
        log_path: Its log, if there is a run folder.
        debug: Show the traceback.
    """
    message = cause.message.strip()
    is_named = cause.type in _SPEAKS_FOR_ITSELF or message.startswith(f"{cause.type}:")
    if cause.exit_code != 2 and not is_named:
        message = f"{cause.type}: {message}" if message else cause.type
    lines = [f"Error ({cause.task}): {message}"]
    if cause.is_silent and tail:
        lines += [f"Its last lines{':' if log_path is None else f' ({log_path}):'}"]
        lines += [f"  | {line}" for line in tail]
    elif debug and cause.traceback:
        lines += [cause.traceback.rstrip()]
    elif cause.traceback and not _tells_all(cause):
        more = "debug=true shows the traceback"
        lines += [f"({more}{f'; it is in {log_path}' if log_path else ''})"]
    return "\n".join(lines) + "\n"


def _tells_all(cause: Cause) -> bool:
    kind = getattr(errors, cause.type, None)
    return cause.exit_code == 2 or cause.is_consequence or getattr(kind, "tells_all", False)
