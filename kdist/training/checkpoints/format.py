"""One checkpoint: a folder with the bytes of all arrays, and `checkpoint.json`, written last.

    step-000000120/
      arrays.bin          the arrays' bytes, one after the other
      shard-...           rows of large arrays that servers wrote themselves; see `shards`
      checkpoint.json     where each of them lies, its dtype, shape and checksum; and the state

A folder is a whole checkpoint if `checkpoint.json` is whole, and all that it names is. So it does
not matter where a kill, a full disk or a file system without atomic renames interrupts the writing.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from kdist.distribute.buckets.layout import Rows
from kdist.errors import ConfigError
from kdist.training.checkpoints import files
from kdist.training.checkpoints.arrays import (
    ARRAYS,
    Block,
    Entry,
    Value,
    row_bounds,
    write_arrays,
)
from kdist.training.checkpoints.shards import SHARD, Shard, read_shard

MARKER = "checkpoint.json"
# All that a checkpoint's folder holds of ours: the marker goes first when one is removed.
OWN_FILES = (MARKER, ARRAYS, SHARD)
VERSION = 1
_CHUNK_BYTES = 16 << 20


class BrokenCheckpointError(ConfigError):
    """A folder is no whole checkpoint: cut off, damaged, or of another version."""


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
    entries, num_bytes = write_arrays(folder, arrays)
    content = {
        "version": VERSION,
        "state": dict(state),
        "arrays": {name: entry.as_json() for name, entry in entries.items()},
    }
    text = json.dumps({**content, "crc32": _checksum(content)}, indent=1).encode()
    with files.writing(files.join(folder, MARKER)) as file:
        file.write(text)
    return num_bytes + len(text)


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
        if entry.shards:
            return self._joined(name, entry)
        try:
            with files.reading(files.join(self.folder, entry.file)) as file:
                file.seek(entry.offset)
                content = file.read(entry.num_bytes)
        except OSError as error:
            raise self._broken(entry.file, error) from error
        if len(content) != entry.num_bytes or zlib.crc32(content) != entry.crc32:
            raise self._broken(f"{name} in {entry.file}", "it is damaged")
        return np.frombuffer(content, np.dtype(entry.dtype)).reshape(entry.shape)

    def read_blocks(self, name: str) -> Iterator[Block]:
        """Yield the rows of an array that `verify` has looked at, each once, in blocks."""
        entry = self.entries[name]
        for shard in entry.shards:
            yield shard.rows, self._read_shard(shard)
        if entry.shards:
            return
        with files.reading(files.join(self.folder, entry.file)) as file:
            file.seek(entry.offset)
            dtype = np.dtype(entry.dtype)
            for first, stop in row_bounds(entry.shape, dtype):
                content = file.read(entry.num_bytes // entry.shape[0] * (stop - first))
                block = np.frombuffer(content, dtype).reshape((stop - first, *entry.shape[1:]))
                yield Rows(first=first, stop=stop), block

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
            for shard in entry.shards:
                self._read_shard(shard)
            if not entry.shards:
                by_file.setdefault(entry.file, []).append((name, entry))
        for file_name, held in by_file.items():
            try:
                with files.reading(files.join(self.folder, file_name)) as file:
                    for name, entry in sorted(held, key=lambda pair: pair[1].offset):
                        file.seek(entry.offset)
                        if _crc_of(file, entry.num_bytes) != entry.crc32:
                            raise self._broken(f"{name} in {file_name}", "it is damaged")
            except OSError as error:
                raise self._broken(file_name, error) from error

    def _joined(self, name: str, entry: Entry) -> np.ndarray:
        whole = np.empty(entry.shape, np.dtype(entry.dtype))
        for rows, values in self.read_blocks(name):
            whole[rows.as_slice] = values
        return whole

    def _read_shard(self, shard: Shard) -> np.ndarray:
        try:
            return read_shard(self.folder, shard)
        except OSError as error:
            raise self._broken(shard.file, error) from error

    def _broken(self, what: str, reason: OSError | str) -> BrokenCheckpointError:
        if isinstance(reason, OSError):
            reason = reason.strerror or str(reason)
        return BrokenCheckpointError(f"The checkpoint {self.folder} is broken: {what}: {reason}.")


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
        entries = {name: Entry.from_json(entry) for name, entry in content["arrays"].items()}
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
