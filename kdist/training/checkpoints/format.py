"""One checkpoint: a folder with the bytes of all arrays, and `checkpoint.json`, written last.

    step-000000120/
      arrays.bin          the arrays' bytes, one after the other
      checkpoint.json     where each of them lies, its dtype, shape and checksum; and the state

A folder is a whole checkpoint if `checkpoint.json` is whole, and all that it names is. So it does
not matter where a kill, a full disk or a file system without atomic renames interrupts the writing.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdist.errors import ConfigError
from kdist.training.checkpoints import files

MARKER = "checkpoint.json"
ARRAYS = "arrays"
# All that a checkpoint's folder holds of ours: the marker goes first when one is removed.
OWN_FILES = (MARKER, ARRAYS)
VERSION = 1
_CHUNK_BYTES = 16 << 20


class BrokenCheckpointError(ConfigError):
    """A folder is no whole checkpoint: cut off, damaged, or of another version."""


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """An array that nobody holds whole: its rows come block by block, in order."""

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Callable[[], Iterator[np.ndarray]]


Value = np.ndarray | Streamed


@dataclass(frozen=True)
class Entry:
    """Where an array lies, and what it is."""

    file: str
    offset: int
    num_bytes: int
    dtype: str
    shape: tuple[int, ...]
    crc32: int


def write_checkpoint(
    folder: str, arrays: Iterable[tuple[str, Value]], state: Mapping[str, Any]
) -> int:
    """Write a checkpoint into a new folder; it counts once `checkpoint.json` is there.

    Args:
        folder: Made by this function.
        arrays: Names and values; taken one at a time.
        state: JSON-able; NaN and infinities may occur.

    Returns:
        The bytes written.

    Raises:
        OSError: If it cannot be written.
    """
    files.make_folder(folder)
    entries: dict[str, Any] = {}
    name, offset = f"{ARRAYS}.bin", 0
    with files.writing(files.join(folder, name)) as file:
        for key, value in arrays:
            blocks = value.blocks() if isinstance(value, Streamed) else (value,)
            begin, crc = offset, 0
            for block in blocks:
                flat = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
                file.write(flat.data if not files.is_remote(folder) else flat.tobytes())
                crc = zlib.crc32(flat.data, crc)
                offset += flat.size
            entries[key] = {
                "file": name,
                "offset": begin,
                "num_bytes": offset - begin,
                "dtype": value.dtype.name,
                "shape": list(value.shape),
                "crc32": crc,
            }
    content = {"version": VERSION, "state": dict(state), "arrays": entries}
    text = json.dumps({**content, "crc32": _checksum(content)}, indent=1).encode()
    with files.writing(files.join(folder, MARKER)) as file:
        file.write(text)
    return offset + len(text)


class SavedCheckpoint:
    """A checkpoint on the disk; made by `read_checkpoint`."""

    def __init__(self, folder: str, state: Mapping[str, Any], entries: Mapping[str, Entry]):
        """Hold what `checkpoint.json` says."""
        self.folder = folder
        self.state = state
        self.entries = entries

    def __contains__(self, name: str) -> bool:
        """Return whether there is an array of this name."""
        return name in self.entries

    def read(self, name: str) -> np.ndarray:
        """Return an array.

        Raises:
            BrokenCheckpointError: If it is damaged, or cannot be read.
        """
        entry = self.entries[name]
        try:
            with files.reading(files.join(self.folder, entry.file)) as file:
                file.seek(entry.offset)
                content = file.read(entry.num_bytes)
        except OSError as error:
            raise self._broken(f"{entry.file}: {error.strerror or error}") from error
        if len(content) != entry.num_bytes or zlib.crc32(content) != entry.crc32:
            raise self._broken(f"{name} in {entry.file} is damaged")
        return np.frombuffer(content, np.dtype(entry.dtype)).reshape(entry.shape)

    def read_rows(self, name: str, first: int, end: int) -> np.ndarray:
        """Return rows `[first, end)` of an array that `verify` has looked at."""
        entry = self.entries[name]
        shape = (end - first, *entry.shape[1:])
        row_bytes = entry.num_bytes // max(1, entry.shape[0])
        with files.reading(files.join(self.folder, entry.file)) as file:
            file.seek(entry.offset + first * row_bytes)
            content = file.read((end - first) * row_bytes)
        return np.frombuffer(content, np.dtype(entry.dtype)).reshape(shape)

    def read_all(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays whose names begin with `prefix`, without it."""
        return {
            name.removeprefix(prefix): self.read(name)
            for name in self.entries
            if name.startswith(prefix)
        }

    def verify(self) -> None:
        """Read everything once, in bounded pieces.

        Raises:
            BrokenCheckpointError: If anything is missing or damaged.
        """
        by_file: dict[str, list[tuple[str, Entry]]] = {}
        for name, entry in self.entries.items():
            by_file.setdefault(entry.file, []).append((name, entry))
        for file_name, held in by_file.items():
            try:
                with files.reading(files.join(self.folder, file_name)) as file:
                    for name, entry in sorted(held, key=lambda pair: pair[1].offset):
                        file.seek(entry.offset)
                        if _crc_of(file, entry.num_bytes) != entry.crc32:
                            raise self._broken(f"{name} in {file_name} is damaged")
            except OSError as error:
                raise self._broken(f"{file_name}: {error.strerror or error}") from error

    def _broken(self, reason: str) -> BrokenCheckpointError:
        return BrokenCheckpointError(f"The checkpoint {self.folder} is broken: {reason}.")


def read_checkpoint(folder: str) -> SavedCheckpoint:
    """Return a checkpoint whose `checkpoint.json` is whole; `verify` looks at the arrays, too.

    Raises:
        BrokenCheckpointError: If there is none, or none that this version reads.
    """
    path = files.join(folder, MARKER)
    try:
        with files.reading(path) as file:
            content = json.loads(file.read())
        found = content.pop("crc32")
        entries = {
            name: Entry(**{**entry, "shape": tuple(entry["shape"])})
            for name, entry in content["arrays"].items()
        }
        is_whole = found == _checksum(content)
    except OSError as error:
        raise BrokenCheckpointError(
            f"{folder} is no whole checkpoint: {MARKER}: {error.strerror or error}."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenCheckpointError(
            f"The checkpoint {folder} is broken: {MARKER} cannot be read."
        ) from error
    if not is_whole:
        raise BrokenCheckpointError(f"The checkpoint {folder} is broken: {MARKER} is damaged.")
    if content.get("version") != VERSION:
        raise BrokenCheckpointError(
            f"The checkpoint {folder} has another format. Received: version "
            f"{content.get('version')}; this kdist reads {VERSION}."
        )
    return SavedCheckpoint(folder, content["state"], entries)


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _crc_of(file: Any, num_bytes: int) -> int:
    total = 0
    while num_bytes > 0:
        chunk = file.read(min(num_bytes, _CHUNK_BYTES))
        if not chunk:
            return -1
        total = zlib.crc32(chunk, total)
        num_bytes -= len(chunk)
    return total
