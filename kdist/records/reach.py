"""Whether the system can look at a path at all, be something there or not."""

import os
from pathlib import Path

from kdist.config.rules import COMMANDS_ON_A_RUN
from kdist.config.schema import Config
from kdist.errors import EnvironmentFault
from kdist.records.resumption import AUTO, NEVER

_INSIDE = "_" * 128  # About as long as the names of what a run folder holds.


def refuse_unreachable_places(config: Config, run_dir: Path, *, key: str) -> None:
    """Refuse places of a run that cannot be looked at, before anything starts.

    Args:
        config: Its checked configuration.
        run_dir: Where its folder goes.
        key: The key that names that.

    Raises:
        EnvironmentFault: Naming the key and what the system says.
    """
    if config.command not in COMMANDS_ON_A_RUN:
        refuse_unreachable(key, run_dir)
    if config.init_from is not None:
        refuse_unreachable("init_from", config.init_from)
    if config.resume not in (AUTO, NEVER):
        refuse_unreachable("resume", config.resume)


def refuse_unreachable(key: str, path: Path | str) -> None:
    """Refuse a path that cannot be looked at, such as one with a name that is too long.

    Args:
        key: The key that names it.
        path: A file or folder that may be missing.

    Raises:
        EnvironmentFault: Naming the key and what the system says.
    """
    try:
        os.stat(Path(path) / _INSIDE)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise EnvironmentFault(
            f"{key} names a place that cannot be looked at: {error.strerror or error}. "
            f"Received: {path}. Choose another place ({key}=...)."
        ) from error
