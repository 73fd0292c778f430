"""Whole files, and whole lines, or none: a kill or a full disk leaves what was there before."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from kdist.errors import EnvironmentFault


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path of a new file to write, with the same suffix; at the end it replaces `path`.

    Readers see the old content or the new, never a part; after an error the old one is left.

    Raises:
        EnvironmentFault: If the file cannot be written, naming it and the reason.
    """
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    except OSError as error:
        raise EnvironmentFault(
            f"{path} cannot be written: {error.strerror or error}. "
            "Check the space and the permissions there."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file (UTF-8), whole; see `replacing`.

    What UTF-8 has no bytes for, such as half of a file name in Latin-1, is written as JSON has it.

    Raises:
        EnvironmentFault: If the file cannot be written, naming it and the reason.
    """
    data = text.encode("utf-8", "backslashreplace")
    with replacing(path) as unfinished, open(unfinished, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def append_whole(descriptor: int, data: bytes) -> None:
    """Append all of `data` to an open file, or nothing: a full disk would take a part.

    Raises:
        OSError: If there is no room for it.
    """
    written = os.write(descriptor, data)
    if written < len(data):
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        if os.fstat(descriptor).st_size == end:  # Nobody has written behind it.
            os.ftruncate(descriptor, end - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
