"""The arrays of a checkpoint on their way to its files, and where each of them lies afterwards."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kdist.distribute.buckets.layout import Rows
from kdist.training.checkpoints import files
from kdist.training.checkpoints.shards import SHARD, Shard

ARRAYS = "arrays"
_FILE = f"{ARRAYS}.bin"
_BLOCK_BYTES = 32 << 20


def _by_nobody(folder: str, name: str) -> tuple[Shard, ...] | None:
    del folder, name


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """An array that nobody holds whole.

    Attributes:
        shape, dtype: As of an array.
        blocks: Yields its rows block by block, in order.
        save_shards: Lets those who hold it write files into a folder whose names begin with a
            text, and returns them; `None` if they cannot.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Callable[[], Iterator[np.ndarray]]
    save_shards: Callable[[str, str], tuple[Shard, ...] | None] = _by_nobody


Value = np.ndarray | Streamed
# Rows of an array, and their values.
Block = tuple[Rows, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What an array is, and where it lies: in a part of a file, or in shards."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    file: str = ""
    offset: int = 0
    crc32: int = 0
    shards: tuple[Shard, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        left_out = {"file", "offset", "crc32"} if self.shards else {"shards"}
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Entry":
        """Return an entry.

        Raises:
            TypeError, KeyError: If it is none.
        """
        shards = tuple(Shard(**shard) for shard in content.get("shards", ()))
        return cls(**{**content, "shape": tuple(content["shape"]), "shards": shards})


def row_bounds(
    shape: Sequence[int], dtype: np.dtype, block_bytes: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield the first row of each block of an array, and the first one after it."""
    row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    size = max(1, (block_bytes or _BLOCK_BYTES) // max(1, row_bytes))
    for lo in range(0, shape[0], size):
        yield lo, min(lo + size, shape[0])


def write_arrays(folder: str, arrays: Iterable[tuple[str, Value]]) -> tuple[dict[str, Entry], int]:
    """Write arrays into a folder; return where they are, and the bytes written.

    Raises:
        OSError: If it cannot be written.
    """
    entries: dict[str, Entry] = {}
    with files.writing(files.join(folder, _FILE)) as file:
        offset = 0
        for name, value in arrays:
            shards = None
            if isinstance(value, Streamed):
                stem = f"{SHARD}{len(entries):04d}"
                shards = value.save_shards(files.absolute(folder), stem)
            if shards is not None:
                entries[name] = _entry(value, sum(s.num_bytes for s in shards), shards=shards)
                continue
            begin, crc = offset, 0
            for block in value.blocks() if isinstance(value, Streamed) else (value,):
                flat = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
                file.write(flat.data if not files.is_remote(folder) else flat.tobytes())
                crc = zlib.crc32(flat.data, crc)
                offset += flat.size
            entries[name] = _entry(value, offset - begin, file=_FILE, offset=begin, crc32=crc)
    return entries, sum(entry.num_bytes for entry in entries.values())


def _entry(value: Value, num_bytes: int, **place: Any) -> Entry:
    return Entry(dtype=value.dtype.name, shape=tuple(value.shape), num_bytes=num_bytes, **place)
