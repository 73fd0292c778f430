"""Fetches the rows of a batch before a step's compute, and gives their gradients their ids after.

As graph code, where the step runs. Only unique rows travel. A table that is updated whole gets the
same (rows, row ids) as it would from Keras, an id that occurs twice included; one that is updated
by rows gets the sum for each row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.buckets.pieces import split_ids
from kdist.distribute.model.lookups import Table
from kdist.distribute.model.step_types import StepValues
from kdist.distribute.step.compute import StepCompute

# Returns rows of tables, or of pieces, each named by its bucket.
LookUp = Callable[[Sequence[tuple[int, tf.Tensor]]], list[tf.Tensor]]


@dataclass(frozen=True)
class FetchedRows:
    """What a step fetched of one table, by piece: positions among its unique ids, and rows."""

    num_ids: tf.Tensor
    positions: list[tf.Tensor]
    rows: list[tf.Tensor]


class RowExchange:
    """The look-ups of a step: rows in, gradients out."""

    def __init__(self, compute: StepCompute, layout: BucketLayout, look_up: LookUp):
        """Hold the parts.

        Args:
            compute: Traces the model to find the ids; it was told of the tables.
            layout: The buckets.
            look_up: Reads rows where they live.
        """
        self._compute = compute
        self._layout = layout
        self._tables = compute.lookups.tables
        self._look_up = look_up

    @tf.autograph.experimental.do_not_convert
    def fetch(
        self, values: StepValues, x: Any, *, training: bool
    ) -> tuple[StepValues, list[FetchedRows]]:
        """Return the values with unique rows in place of tables, and what was fetched.

        An id outside of its table fails the step with a message that names both.
        """
        if not self._tables:
            return values, []
        buckets, positions, fetched, wanted = list(values.buckets), [], [], []
        for table, calls in zip(
            self._tables,
            self._compute.looked_up_ids(values, x, training=training),
            strict=True,
        ):
            ids, where = tf.unique(tf.concat(calls, 0))
            with tf.control_dependencies([_check_range(table, ids)]):
                ids = tf.identity(ids)
            parts, rows = split_ids(ids, len(table.bucket_indices))
            wanted += zip(table.bucket_indices, rows, strict=True)
            positions.append(tf.split(where, [tf.size(call) for call in calls], num=len(calls)))
            fetched.append(FetchedRows(tf.size(ids), parts, rows))
        found = iter(self._look_up(wanted))
        for table, rows in zip(self._tables, fetched, strict=True):
            pieces = [next(found) for _ in table.bucket_indices]
            buckets[table.bucket_indices[0]] = (
                pieces[0] if len(pieces) == 1 else tf.dynamic_stitch(rows.positions, pieces)
            )
        return values._replace(buckets=buckets, positions=positions), fetched

    @tf.autograph.experimental.do_not_convert
    def by_id(self, gradients: Sequence[Any], fetched: Sequence[FetchedRows]) -> list[Any]:
        """Return gradients by bucket with those of tables by the rows of each piece.

        Args:
            gradients: Of the compute; those of looked-up tables count the fetched rows.
            fetched: What `fetch` returned for the step.
        """
        result = list(gradients)
        for table, rows in zip(self._tables, fetched, strict=True):
            whole = gradients[table.bucket_indices[0]]
            parts = _sums_by_piece(whole, rows) if table.is_by_rows else _by_piece(whole, rows)
            for index, (values, ids) in zip(table.bucket_indices, parts, strict=True):
                shape = tf.constant(self._layout.buckets[index].shape, tf.int64)
                result[index] = tf.IndexedSlices(values, ids, shape)
        return result


def _sums_by_piece(gradient: Any, fetched: FetchedRows) -> list[tuple[tf.Tensor, tf.Tensor]]:
    sums = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, fetched.num_ids)
    if len(fetched.rows) == 1:
        return [(sums, fetched.rows[0])]
    return [
        (tf.gather(sums, positions), rows)
        for positions, rows in zip(fetched.positions, fetched.rows, strict=True)
    ]


def _by_piece(gradient: Any, fetched: FetchedRows) -> list[tuple[tf.Tensor, tf.Tensor]]:
    num_pieces = len(fetched.rows)
    if num_pieces == 1:
        return [(gradient.values, tf.gather(fetched.rows[0], gradient.indices))]
    piece_of_id = tf.dynamic_stitch(
        fetched.positions,
        [tf.fill([tf.size(p)], index) for index, p in enumerate(fetched.positions)],
    )
    row_of_id = tf.dynamic_stitch(fetched.positions, fetched.rows)
    piece = tf.gather(piece_of_id, gradient.indices)
    values = tf.dynamic_partition(gradient.values, piece, num_pieces)
    rows = tf.dynamic_partition(tf.gather(row_of_id, gradient.indices), piece, num_pieces)
    return list(zip(values, rows, strict=True))


def _check_range(table: Table, ids: tf.Tensor) -> tf.Operation:
    """Return an operation that fails if an id is no row of the table."""
    is_wrong = tf.logical_or(ids < 0, ids >= table.num_rows)
    wrong = tf.boolean_mask(ids, is_wrong)
    text = tf.strings.format(
        f"The embedding {table.name} has ids from 0 to {table.num_rows - 1}. Received: {{}}. "
        "Correct the data, or raise its input_dim.",
        wrong[:3],
    )
    return tf.debugging.Assert(tf.equal(tf.size(wrong), 0), [text])
