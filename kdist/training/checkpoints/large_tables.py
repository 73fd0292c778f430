"""Tables that only servers hold: nobody has one of them whole.

Their servers write them into files of the checkpoint, side by side; or, where those do not see its
folder, they pass through the chief block by block.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from kdist.distribute.buckets.held_values import Held
from kdist.distribute.buckets.layout import Bucket, Rows
from kdist.distribute.values import raw_variable, rows_writer
from kdist.training.checkpoints.arrays import Block, Streamed, row_bounds
from kdist.training.checkpoints.shards import Shard, SharedFolder, described

# A server writes a table in files of this size, so much of it is in memory for that.
SHARD_BYTES = 128 << 20

# A piece of a table (or of a slot of it): its bucket, and its variable or what it holds.
Piece = tuple[Bucket, Any]
ReadBlocks = Callable[[str], Iterable[Block]]


def can_be_copied(variables: Sequence[Any], copy_bytes: int) -> bool:
    """Return whether each server has room for a copy of those of these variables that it holds."""
    total: Counter[str] = Counter()
    for variable in variables:
        total[variable.device] += variable.dtype.size * (variable.shape.num_elements() or 0)
    return all(num_bytes <= copy_bytes for num_bytes in total.values())


def streamed(pieces: Sequence[tuple[Bucket, Held]], shared: SharedFolder | None) -> Streamed:
    """Return a table that is written from its pieces, by its servers or in blocks."""
    first, held = pieces[0]
    num_rows = sum(bucket.shape[0] for bucket, _ in pieces)
    shape = (num_rows, *first.shape[1:])
    dtype = np.dtype(held.variable.dtype.as_numpy_dtype)

    def blocks() -> Iterator[np.ndarray]:
        for lo, hi in row_bounds(shape, dtype):
            block = np.empty((hi - lo, *shape[1:]), dtype)
            for bucket, held in pieces:
                rows = _rows_of(bucket, num_rows)
                here = _here(rows, lo, hi)
                if here:
                    begin = rows.first + here.start * rows.step - lo
                    block[begin :: rows.step][: len(here)] = held.rows(here.start, here.stop)
            yield block

    def save(folder: str, name: str) -> tuple[Shard, ...] | None:
        if shared is None or not shared.is_seen(folder, [held for _, held in pieces]):
            return None
        with ThreadPoolExecutor(len(pieces)) as servers:
            jobs = [
                servers.submit(_save_piece, piece, num_rows, folder, f"{name}-{number}")
                for number, piece in enumerate(pieces)
            ]
        return tuple(itertools.chain.from_iterable(job.result() for job in jobs))

    return Streamed(shape=shape, dtype=dtype, blocks=blocks, save_shards=save)


def restore_table(pieces: Sequence[Piece], blocks: Iterable[Block]) -> None:
    """Give the pieces of a table the values that a checkpoint has in blocks."""
    num_rows = sum(bucket.shape[0] for bucket, _ in pieces)
    targets = [(_rows_of(bucket, num_rows), rows_writer(held)) for bucket, held in pieces]
    for saved, values in blocks:
        ids = np.arange(saved.first, saved.stop, saved.step)
        for rows, write in targets:
            offsets = ids - rows.first
            is_here = (ids < rows.stop) & (offsets >= 0) & (offsets % rows.step == 0)
            if is_here.any():
                write(offsets[is_here] // rows.step, values[is_here])


def write_no_rows(pieces: Sequence[Piece]) -> None:
    """Write none of the rows of a table's pieces, as if some were: see `canonical.prepare`."""
    for bucket, variable in pieces:
        rows = np.zeros([0, *bucket.shape[1:]], raw_variable(variable).dtype.as_numpy_dtype)
        rows_writer(variable)(np.zeros([0], np.int64), rows)


def _save_piece(piece: tuple[Bucket, Held], num_rows: int, folder: str, name: str) -> list[Shard]:
    """Let a server write its piece of a table, file by file."""
    bucket, held = piece
    rows = _rows_of(bucket, num_rows)
    dtype = np.dtype(held.variable.dtype.as_numpy_dtype)
    found = []
    for number, (lo, hi) in enumerate(row_bounds(bucket.shape, dtype, SHARD_BYTES)):
        file = f"{name}-{number}"
        held.save(f"{folder}/{file}", lo, hi)
        stop = min(rows.stop, rows.first + hi * rows.step)
        part = Rows(first=rows.first + lo * rows.step, stop=stop, step=rows.step)
        found.append(described(folder, file, part))
    return found


def _rows_of(bucket: Bucket, num_rows: int) -> Rows:
    """Return which rows of its table a bucket holds."""
    return bucket.members[0].rows or Rows(first=0, stop=num_rows)


def _here(rows: Rows, lo: int, hi: int) -> range:
    """Return the places in a piece of those of its rows that lie in `[lo, hi)` of the table."""
    first = max(0, -(-(lo - rows.first) // rows.step))
    end = min(rows.num, max(0, -(-(hi - rows.first) // rows.step)))
    return range(first, max(first, end))
