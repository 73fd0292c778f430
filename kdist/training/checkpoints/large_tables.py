"""Tables that only servers hold: they pass through the chief block by block.

Nobody holds such a table whole, nor a second copy of it. So it is written while training waits.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.layout import Bucket, Rows
from kdist.distribute.values import read_rows, write, write_rows
from kdist.training.checkpoints.format import Streamed

_BLOCK_BYTES = 32 << 20

# A piece of a table (or of a slot of it): its bucket, and the variable on its server.
Piece = tuple[Bucket, Any]
ReadRows = Callable[[str, int, int], np.ndarray]


def streamed(pieces: Sequence[Piece]) -> Streamed:
    """Return a table whose blocks are read from its pieces when they are written."""
    first, variable = pieces[0]
    num_rows = sum(bucket.shape[0] for bucket, _ in pieces)
    shape = (num_rows, *first.shape[1:])
    dtype = np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)

    def blocks() -> Iterator[np.ndarray]:
        for lo, hi in _bounds(shape, dtype):
            block = np.empty((hi - lo, *shape[1:]), dtype)
            for bucket, held in pieces:
                rows = rows_of(bucket, num_rows)
                here = _here(rows, lo, hi)
                if here:
                    begin = rows.first + here.start * rows.step - lo
                    block[begin :: rows.step][: len(here)] = read_rows(held, here.start, here.stop)
            yield block

    return Streamed(shape=shape, dtype=dtype, blocks=blocks)


def restore_piece(piece: Piece, name: str, num_rows: int, read: ReadRows) -> None:
    """Write one piece of a table that a checkpoint holds under a name."""
    bucket, variable = piece
    rows = rows_of(bucket, num_rows)
    shape = (num_rows, *bucket.shape[1:])
    whole: np.ndarray | None = None
    for lo, hi in _bounds(shape, np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)):
        here = _here(rows, lo, hi)
        if not here:
            continue
        begin = rows.first + here.start * rows.step - lo
        own = read(name, lo, hi)[begin :: rows.step][: len(here)]
        if not write_rows(variable, here.start, own):  # Only the whole piece can be written.
            whole = np.empty(bucket.shape, own.dtype) if whole is None else whole
            whole[here.start : here.stop] = own
    if whole is not None:
        write(variable, whole)


def rows_of(bucket: Bucket, num_rows: int) -> Rows:
    """Return which rows of its table a bucket holds."""
    return bucket.members[0].rows or Rows(first=0, stop=num_rows)


def _here(rows: Rows, lo: int, hi: int) -> range:
    """Return the places in a piece of those of its rows that lie in `[lo, hi)` of the table."""
    first = max(0, -(-(lo - rows.first) // rows.step))
    end = min(rows.num, max(0, -(-(hi - rows.first) // rows.step)))
    return range(first, max(first, end))


def _bounds(shape: Sequence[int], dtype: np.dtype) -> Iterator[tuple[int, int]]:
    row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    size = max(1, _BLOCK_BYTES // max(1, row_bytes))
    for lo in range(0, shape[0], size):
        yield lo, min(lo + size, shape[0])
