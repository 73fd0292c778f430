"""Tables, and slots of tables, that are too large for this process's memory: arrays on disk."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute.buckets.layout import Bucket
from kdist.distribute.values import read_rows

# From this size on a slot of a table is put together on disk.
SPILL_BYTES = 256 << 20
_BLOCK_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class KeptTable:
    """A table that only the servers hold: its layer, and its buckets with their variables."""

    layer: keras.layers.Embedding
    parts: list[tuple[Bucket, keras.Variable]]


class OnDisk:
    """An array in a file without a name, which goes with it; `np.array` of it is not a copy."""

    def __init__(self, shape: Sequence[int], dtype: Any):
        """Make room in the folder for temporary files (TMPDIR)."""
        with tempfile.TemporaryFile(prefix="kdist-table-") as file:
            self.array = np.memmap(file, dtype, "w+", shape=tuple(shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the array itself, also where a copy is asked for: it would fill the memory."""
        del copy
        return self.array if dtype is None else self.array.astype(dtype, copy=False)


def is_large(parts: Sequence[tuple[Bucket, keras.Variable]]) -> bool:
    """Return whether these buckets, all of one variable, should be put together on disk."""
    return sum(bucket.num_bytes for bucket, _ in parts) > SPILL_BYTES


def spilled(parts: Sequence[tuple[Bucket, keras.Variable]]) -> OnDisk:
    """Return a table, or a slot of one, on disk; a block of rows is in memory at a time.

    Args:
        parts: Its buckets, each with the variable that has the values of the bucket's rows.
    """
    first, variable = parts[0]
    num_rows = sum(bucket.shape[0] for bucket, _ in parts)
    whole = OnDisk((num_rows, *first.shape[1:]), tf.as_dtype(variable.dtype).as_numpy_dtype)
    for bucket, variable in parts:
        rows = bucket.members[0].rows
        own = whole.array if rows is None else whole.array[rows.as_slice]
        size = max(1, _BLOCK_BYTES * bucket.shape[0] // max(1, bucket.num_bytes))
        for lo in range(0, bucket.shape[0], size):
            hi = min(lo + size, bucket.shape[0])
            own[lo:hi] = read_rows(variable, lo, hi)
    return whole
