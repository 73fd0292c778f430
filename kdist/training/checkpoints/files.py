"""The few file operations that checkpoints need, here (`/path`) or elsewhere (`gs://bucket/path`).

What goes wrong is an `OSError` in both cases.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from typing import Any, BinaryIO

import tensorflow as tf


def is_remote(path: str) -> bool:
    """Return whether a path is another file system's, which `tf.io.gfile` knows."""
    return "://" in path


def join(folder: str, name: str) -> str:
    """Return the path of an entry of a folder."""
    return f"{folder.rstrip('/')}/{name}"


def absolute(path: str) -> str:
    """Return a path that means the same to every process that sees the file system."""
    return path if is_remote(path) else os.path.abspath(path)


def make_folder(path: str) -> None:
    """Make a folder and its parents; one that is there is fine."""
    if is_remote(path):
        with _as_os_errors():
            tf.io.gfile.makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


def check_can_be_written(folder: str) -> None:
    """Raise an `OSError` if a folder of this machine takes no files; of others, nobody knows."""
    if not is_remote(folder) and not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)


def names(folder: str) -> list[str]:
    """Return the names of a folder's entries, sorted; none if there is no such folder."""
    if not is_remote(folder):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(os.listdir(folder))
        return []
    with _as_os_errors():
        if not tf.io.gfile.isdir(folder):
            return []
        return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(folder))


@contextlib.contextmanager
def writing(path: str) -> Iterator[Any]:
    """Give a binary file to write; after the block it is on the disk, or an error was raised."""
    if is_remote(path):
        with _as_os_errors(), tf.io.gfile.GFile(path, "wb") as file:
            yield file
        return
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def sync(path: str) -> None:
    """Get what somebody has written into a file of this machine onto the disk."""
    if not is_remote(path):
        with open(path, "rb") as file:
            os.fsync(file.fileno())


@contextlib.contextmanager
def reading(path: str) -> Iterator[BinaryIO | Any]:
    """Give a binary file to read."""
    if is_remote(path):
        with _as_os_errors(), tf.io.gfile.GFile(path, "rb") as file:
            yield file
    else:
        with open(path, "rb") as file:
            yield file


def size_of(path: str) -> int:
    """Return the bytes of a file."""
    if not is_remote(path):
        return os.path.getsize(path)
    with _as_os_errors():
        return int(tf.io.gfile.stat(path).length)


def rename(old: str, new: str) -> None:
    """Rename a folder of this machine, atomically; the rename itself is on the disk afterwards."""
    os.rename(old, new)
    descriptor = os.open(os.path.dirname(new) or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(folder: str, known: tuple[str, ...]) -> None:
    """Remove a folder whose files begin with one of these names, the first ones first.

    Whatever else is in it was put there by somebody else: it stays, and the folder with it.
    """
    present = names(folder)
    for prefix in known:
        for name in [each for each in present if each.startswith(prefix)]:
            remove(join(folder, name))
    if is_remote(folder):
        with _as_os_errors():
            if tf.io.gfile.isdir(folder) and not tf.io.gfile.listdir(folder):
                tf.io.gfile.rmtree(folder)
    else:
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def free_bytes(folder: str) -> int | None:
    """Return the space left where a folder is, or `None` where nobody can know."""
    if is_remote(folder):
        return None
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free
    return None


def remove(path: str) -> None:
    """Remove a file; none is there afterwards."""
    if is_remote(path):
        with _as_os_errors(), contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(error.message) from error
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
