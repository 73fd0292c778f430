"""Hold a finite tf.data.Dataset in memory, so that any of its batches can be read at any time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.data.elements import row_bytes
from kdist.errors import ConfigError

_CHUNK_ROWS = 256
_MIN_ROW_BYTES = 64


def materialize(rows: tf.data.Dataset, cache_bytes: int, key: str) -> Any:
    """Return the rows of a dataset as a nest of arrays, or `None` if they do not fit.

    Args:
        rows: Unbatched dataset.
        cache_bytes: The largest size to hold. A row counts at least 64 bytes.
        key: What to call the part in messages.

    Raises:
        ConfigError: If the dataset is empty, cannot be read, or has rows of different shapes.
    """
    num_rows = int(rows.cardinality())
    known_bytes = row_bytes(rows.element_spec)
    if num_rows == tf.data.INFINITE_CARDINALITY:
        return None
    if num_rows > 0 and num_rows * max(known_bytes or 0, _MIN_ROW_BYTES) > cache_bytes:
        return None
    chunks: list[list[Any]] = []
    total_bytes = 0
    with fresh_reading_errors(key):
        for chunk in rows.batch(_CHUNK_ROWS).as_numpy_iterator():
            leaves = tf.nest.flatten(chunk)
            num_bytes = sum(_num_bytes(leaf) for leaf in leaves)
            total_bytes += max(num_bytes, _MIN_ROW_BYTES * len(leaves[0]))
            if total_bytes > cache_bytes:
                return None
            chunks.append(leaves)
    if not chunks:
        raise ConfigError(f"{key} has no rows. Received: an empty tf.data.Dataset.")
    # Array by array, so that at most one is in memory twice.
    by_array = [list(column) for column in zip(*chunks, strict=True)]
    chunks.clear()
    arrays = []
    while by_array:
        arrays.append(np.concatenate(by_array.pop(0)))
    return tf.nest.pack_sequence_as(rows.element_spec, arrays)


@contextmanager
def fresh_reading_errors(key: str) -> Iterator[None]:
    """Turn TensorFlow's errors on reading a user's dataset into one that names the part."""
    try:
        yield
    except tf.errors.OpError as error:
        first_line = next(iter((error.message or "").strip().splitlines()), "no message")
        hint = (
            " Pad rows to one shape."
            if "batch" in first_line and "shape" in first_line
            else " Iterate over the dataset by itself to find the row."
        )
        raise ConfigError(
            f"{key} could not be read. Received: {type(error).__name__}: {first_line}.{hint}"
        ) from error


def _num_bytes(array: np.ndarray) -> int:
    if array.dtype.kind == "O":
        return sum(len(item) for item in array.flat)
    return array.nbytes
