"""Consecutive batches of arrays, read together: less work a batch where batches are small."""

from typing import Any

import tensorflow as tf

from kdist.distribute.data.array_source import ArraySource
from kdist.distribute.data.source import map_plain, num_prefetched, pass_by_pass, read_ahead
from kdist.distribute.shares import WorkerShare, worker_block_op

# Batches of a run, and their bytes: a run should stay in the processor's cache.
MAX_RUN_BATCHES = 10
MAX_RUN_BYTES = 1 << 20


def run_length(source: ArraySource) -> int:
    """Return how many batches a run has; a pass is cut into runs of about the same length."""
    order = source.order
    batch_bytes = max(1, source.num_bytes * order.batch_size // source.num_examples)
    longest = max(1, min(MAX_RUN_BATCHES, MAX_RUN_BYTES // batch_bytes))
    num_runs = -(-order.batches_per_pass // longest)
    return -(-order.batches_per_pass // num_runs)


def runs_of(source: ArraySource, first_batch: int, share: WorkerShare) -> tf.data.Dataset:
    """Return `(x, y, sample_weight, num_global_rows)` elements of several batches each, endless.

    An element holds this worker's blocks of up to `run_length(source)` consecutive global batches
    of one pass, one after the other; `num_global_rows` is an int64 vector with the rows of each of
    these global batches. `block_bounds` finds a block in it.

    Args:
        source: The arrays and their order.
        first_batch: The first batch of the first element, counted over all passes.
        share: The worker that reads.
    """
    order, tensors, length = source.order, source.tensors, run_length(source)

    def one_pass(pass_index: Any, indices: tf.data.Dataset) -> tf.data.Dataset:
        table = order.rows_at(pass_index, 0, order.num_rows) if source.uses_tables else None

        def element(batch_indices: Any) -> Any:
            _, lo, hi = order.positions(batch_indices)
            block_lo, block_hi = worker_block_op(hi - lo, share)
            positions = tf.ragged.range(lo + block_lo, lo + block_hi).flat_values
            if table is not None:
                rows = tf.gather(table, positions)
            else:
                rows = order.rows_in_pass(pass_index, positions)
            return (*source.gather(tensors, rows), hi - lo)

        return map_plain(indices.batch(length), element)

    runs = pass_by_pass(
        one_pass,
        first_batch=first_batch,
        batches_per_pass=order.batches_per_pass,
        repeat=True,
        stride=1,
    )
    run_bytes = source.num_bytes * order.batch_size * length // source.num_examples
    return read_ahead(runs, num_prefetched(run_bytes))


def block_bounds(num_global_rows: Any, share: WorkerShare) -> tuple[Any, Any]:
    """Return where each batch's block lies within an element of `runs_of`: int64 `lo` and `hi`."""
    block_lo, block_hi = worker_block_op(num_global_rows, share)
    hi = tf.cumsum(block_hi - block_lo)
    return hi - (block_hi - block_lo), hi
