"""Whole files or none: what a kill or a full disk interrupts leaves the old file in place."""

import contextlib
import os
from pathlib import Path

from kdist.errors import EnvironmentFault


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file (UTF-8) so that readers see the old content or the new, never a part.

    Raises:
        EnvironmentFault: If the file cannot be written, naming it and the reason.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise EnvironmentFault(
            f"{path} cannot be written: {error.strerror or error}. "
            "Check the space and the permissions there."
        ) from error
