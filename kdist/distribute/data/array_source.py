"""Arrays in memory: any batch can be read at any time."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute.data.class_weights import (
    check_class_weight,
    class_weight_rows,
    combined,
)
from kdist.distribute.data.labels import LabelRule, refuse_wrong_labels
from kdist.distribute.data.nests import as_array, map_named, named_leaves, split_part
from kdist.distribute.data.order import BatchOrder
from kdist.distribute.data.source import (
    DataSettings,
    map_plain,
    num_prefetched,
    pass_by_pass,
    read_ahead,
)
from kdist.distribute.shares import WorkerShare, worker_block_op
from kdist.errors import ConfigError

_MIN_BATCHES_FOR_TABLE = 8
_MAX_TABLE_ROWS = 1 << 22


class ArraySource:
    """A part held as arrays `(x, y, sample_weight)`; see `BatchSource`."""

    kind = "arrays"

    def __init__(
        self,
        arrays: Any,
        order: BatchOrder,
        warnings: tuple[str, ...] = (),
        *,
        key: str = "data",
    ) -> None:
        """Take checked arrays; `array_source` makes them.

        Args:
            arrays: Nest of numpy arrays of `order.num_rows` rows.
            order: Which rows a batch has.
            warnings: What the user should know about this source.
            key: What to call the part in messages.
        """
        self.arrays = arrays
        self.order = order
        self.warnings = warnings
        self._key = key

    @property
    def num_examples(self) -> int:
        """Return the number of rows."""
        return self.order.num_rows

    @property
    def batches_per_pass(self) -> int:
        """Return the number of batches that hold each row once."""
        return self.order.batches_per_pass

    @property
    def rows_per_batch(self) -> int | None:
        """Return the rows of every batch, `None` if the last one of a pass has fewer."""
        return self.order.rows_per_batch

    @property
    def element_spec(self) -> Any:
        """Return the specs of a batch, batch axis `None`."""
        return tf.nest.map_structure(
            lambda a: tf.TensorSpec([None, *a.shape[1:]], tf.as_dtype(_tf_dtype(a))), self.arrays
        )

    @cached_property
    def tensors(self) -> Any:
        """Return the arrays as tensors in this process's host memory, made once.

        From then on `arrays` are views of the tensors, so that kdist holds one copy.
        """
        with tf.device("CPU:0"):
            tensors = tf.nest.map_structure(tf.convert_to_tensor, self.arrays)
        self.arrays = tf.nest.map_structure(
            lambda t, a: a if t.dtype == tf.string else np.asarray(t), tensors, self.arrays
        )
        return tensors

    def rows_of(self, batch_index: Any) -> Any:
        """Return the row ids of a global batch: int64 vector, TensorFlow operations only."""
        return self.order.rows_of(batch_index)

    @staticmethod
    def gather(tensors: Any, rows: Any) -> Any:
        """Return `(x, y, sample_weight)` of some rows, TensorFlow operations only.

        Args:
            tensors: The arrays as tensors, wherever they should be read.
            rows: int64 vector of row ids.
        """
        return tf.nest.map_structure(lambda t: tf.gather(t, rows), tensors)

    def first_batch(self, max_rows: int) -> Any:
        """Return the first rows in the order given, a numpy nest."""
        return tf.nest.map_structure(lambda a: a[:max_rows], self.arrays)

    def expect_labels(self, rules: Sequence[LabelRule]) -> None:
        """Check all labels; see `BatchSource`."""
        refuse_wrong_labels(self.arrays[1], rules, self._key)

    def dataset(
        self, first_batch: int, share: WorkerShare, *, repeat: bool, stride: int = 1
    ) -> tf.data.Dataset:
        """Return this worker's blocks of the batches from `first_batch` on; see `BatchSource`."""
        batches = (
            self._dataset_by_tables(first_batch, share, repeat, stride)
            if self.uses_tables
            else self._dataset_by_rows(first_batch, share, repeat, stride)
        )
        batch_bytes = self.num_bytes // self.num_examples * self.order.batch_size
        return read_ahead(batches, num_prefetched(batch_bytes))

    @property
    def uses_tables(self) -> bool:
        """Whether to draw the order of a whole pass at once: a third less work for each batch."""
        is_worth_it = self.batches_per_pass >= _MIN_BATCHES_FOR_TABLE
        return self.order.shuffle and is_worth_it and self.num_examples <= _MAX_TABLE_ROWS

    def _dataset_by_rows(
        self, first_batch: int, share: WorkerShare, repeat: bool, stride: int
    ) -> tf.data.Dataset:
        order, tensors = self.order, self.tensors

        def element(batch_index: Any) -> Any:
            pass_index, lo, hi = order.positions(batch_index)
            block_lo, block_hi = worker_block_op(hi - lo, share)
            if order.shuffle:
                rows = order.rows_at(pass_index, lo + block_lo, lo + block_hi)
                batch = self.gather(tensors, rows)
            else:
                batch = tf.nest.map_structure(lambda t: t[lo + block_lo : lo + block_hi], tensors)
            return (*batch, hi - lo)

        end = tf.int64.max if repeat else order.end_of_pass(first_batch)
        return map_plain(tf.data.Dataset.range(first_batch, end, stride), element)

    def _dataset_by_tables(
        self, first_batch: int, share: WorkerShare, repeat: bool, stride: int
    ) -> tf.data.Dataset:
        order, tensors = self.order, self.tensors

        def one_pass(pass_index: Any, indices: tf.data.Dataset) -> tf.data.Dataset:
            table = order.rows_at(pass_index, 0, order.num_rows)

            def element(batch_index: Any) -> Any:
                _, lo, hi = order.positions(batch_index)
                block_lo, block_hi = worker_block_op(hi - lo, share)
                rows = table[lo + block_lo : lo + block_hi]
                return (*self.gather(tensors, rows), hi - lo)

            return map_plain(indices, element)

        return pass_by_pass(
            one_pass,
            first_batch=first_batch,
            batches_per_pass=order.batches_per_pass,
            repeat=repeat,
            stride=stride,
        )

    @property
    def num_bytes(self) -> int:
        """Return the size of all arrays."""
        return sum(array.nbytes for array in tf.nest.flatten(self.arrays))


def array_source(
    part: Any,
    *,
    settings: DataSettings,
    class_weight: Any = None,
    key: str = "data",
    warnings: tuple[str, ...] = (),
) -> ArraySource:
    """Return the source of a part given as arrays; see `make_source`.

    Raises:
        ConfigError: If the arrays cannot be trained on; the message names the array.
    """
    x, y, sample_weight = split_part(part, key)
    x = map_named(as_array, x, f"{key} x")
    y = map_named(lambda v, name: as_array(v, name, strings=False), y, f"{key} y")
    sample_weight = map_named(as_weights, sample_weight, f"{key} sample_weight")
    num_rows = _num_rows((x, y, sample_weight), key)
    if class_weight is not None:
        check_class_weight(class_weight, y, key)
        sample_weight = combined(class_weight_rows(y, class_weight), sample_weight)
    order = BatchOrder(
        num_rows=num_rows,
        batch_size=settings.batch_size,
        shuffle=settings.shuffle,
        seed=settings.seed,
    )
    return ArraySource((x, y, sample_weight), order, warnings, key=key)


def as_weights(value: Any, name: str) -> np.ndarray:
    """Return sample weights as an array of floats.

    Raises:
        ConfigError: If they are no real numbers, or not an array of rows.
    """
    array = as_array(value, name, strings=False)
    if array.dtype.kind == "c":
        raise ConfigError(f"{name} must hold real numbers. Received: an array of {array.dtype}.")
    return array.astype(keras.config.floatx(), copy=False)


def _num_rows(arrays: Any, key: str) -> int:
    x, y, sample_weight = arrays
    named = [
        *named_leaves(x, "x"),
        *named_leaves(y, "y"),
        *named_leaves(sample_weight, "sample_weight"),
    ]
    if not named_leaves(x, "x"):
        raise ConfigError(f"{key} has no inputs: x is empty.")
    lengths = {len(array) for _, array in named}
    received = ", ".join(f"{name} {array.shape}" for name, array in named)
    if len(lengths) > 1:
        raise ConfigError(
            f"All arrays of {key} must have the same number of rows. Received: {received}."
        )
    if lengths == {0}:
        raise ConfigError(f"{key} has no rows. Received: {received}.")
    return lengths.pop()


def _tf_dtype(array: np.ndarray) -> Any:
    return tf.string if array.dtype.kind in "USO" else array.dtype
