"""The rows of a global batch that each replica and each worker takes, also as tensors.

Replica `r` of `R` takes rows `[r * n // R, (r + 1) * n // R)` of the `n` rows of a global batch.
When there are fewer rows than replicas, every replica takes the whole batch, so that nobody runs
on an empty share, and only replica 0 votes: what the others compute counts for nothing.
"""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kdist.cluster.batch_share import share_bounds
from kdist.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class WorkerShare:
    """Where one worker stands among all: replicas are numbered worker by worker.

    Attributes:
        worker_index: This worker, from zero.
        num_workers: Workers that train; the chief counts if it trains.
        replicas_per_worker: Replicas in each worker's process, the same everywhere.
    """

    worker_index: int = 0
    num_workers: int = 1
    replicas_per_worker: int = 1

    def __post_init__(self) -> None:
        """Refuse positions that no cluster has."""
        if self.replicas_per_worker < 1 or not 0 <= self.worker_index < self.num_workers:
            raise ConfigError(
                "A worker's index must be below the number of workers, and each worker needs a "
                f"replica. Received: worker_index={self.worker_index}, "
                f"num_workers={self.num_workers}, replicas_per_worker={self.replicas_per_worker}."
            )

    @property
    def num_replicas(self) -> int:
        """Return the replicas of all workers together."""
        return self.num_workers * self.replicas_per_worker

    @property
    def first_replica(self) -> int:
        """Return the global index of this worker's first replica."""
        return self.worker_index * self.replicas_per_worker

    @property
    def last_replica(self) -> int:
        """Return the global index of this worker's last replica."""
        return self.first_replica + self.replicas_per_worker - 1


def worker_block(num_rows: int, share: WorkerShare) -> tuple[int, int]:
    """Return the rows `[lo, hi)` of a global batch that a worker's replicas need together."""
    lo, _, _ = share_bounds(num_rows, share.first_replica, share.num_replicas)
    _, hi, _ = share_bounds(num_rows, share.last_replica, share.num_replicas)
    return lo, hi


def share_bounds_op(num_rows: Any, replica_index: Any, num_replicas: int) -> tuple[Any, Any, Any]:
    """Return `share_bounds` as tensors: int64, int64 and bool scalars.

    Args:
        num_rows: An int64 scalar tensor.
        replica_index: An int, or an integer scalar tensor.
        num_replicas: Replicas of all workers together.
    """
    num_rows = tf.cast(num_rows, tf.int64)
    replica = tf.cast(replica_index, tf.int64)
    is_small = num_rows < num_replicas
    lo = tf.where(is_small, tf.zeros_like(num_rows), replica * num_rows // num_replicas)
    hi = tf.where(is_small, num_rows, (replica + 1) * num_rows // num_replicas)
    return lo, hi, tf.logical_or(tf.logical_not(is_small), tf.equal(replica, 0))


def worker_block_op(num_rows: Any, share: WorkerShare) -> tuple[Any, Any]:
    """Return `worker_block` as two int64 scalar tensors."""
    if share.num_workers == 1:
        num_rows = tf.cast(num_rows, tf.int64)
        return tf.zeros_like(num_rows), num_rows
    lo, _, _ = share_bounds_op(num_rows, share.first_replica, share.num_replicas)
    _, hi, _ = share_bounds_op(num_rows, share.last_replica, share.num_replicas)
    return lo, hi


def replica_in_block_op(
    num_rows: Any, share: WorkerShare, replica_in_worker: Any
) -> tuple[Any, Any, Any]:
    """Return `(lo, hi, vote)` of one of this worker's replicas, counted from its block's start.

    Args:
        num_rows: Rows of the global batch, an int64 scalar tensor.
        share: This worker's position.
        replica_in_worker: The replica's index within its worker, an int or a scalar tensor.
    """
    block_lo, _ = worker_block_op(num_rows, share)
    replica = tf.cast(replica_in_worker, tf.int64) + share.first_replica
    lo, hi, vote = share_bounds_op(num_rows, replica, share.num_replicas)
    return lo - block_lo, hi - block_lo, vote
