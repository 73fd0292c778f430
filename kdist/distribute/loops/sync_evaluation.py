"""Exact evaluation by the synchronous modes: each replica evaluates whole batches."""

from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.data.source import BatchSource
from kdist.distribute.loops.inner_loop import NextBatches
from kdist.distribute.model.step_types import Share
from kdist.distribute.shares import WorkerShare
from kdist.distribute.step.replica_step import ReplicaStep
from kdist.distribute.step.signatures import share_specs, step_seeds

# Python as written, with no loop turned into a graph loop.
_PLAIN = tf.autograph.experimental.do_not_convert


class SyncEvaluation:
    """Evaluates batch by batch, so that any loss and metric is exact."""

    def __init__(self, step: ReplicaStep, batch_spec: Any):
        """Trace the compute for batches of a spec."""
        self._step = step
        self._share = step.share
        evaluate = tf.function(step.compute.evaluate, autograph=False)
        self._evaluate_fn = evaluate.get_concrete_function(
            step.value_specs(), share_specs(step.structure, batch_spec)
        )
        self._sum_fn = tf.function(self._evaluate_batches)

    def run(
        self, source: BatchSource, num_batches: int | None, next_batches: NextBatches
    ) -> np.ndarray:
        """Return exact sums over all workers: float64 `[num_logged]`; see `InnerLoop.evaluate`."""
        limit = source.batches_per_pass if num_batches is None else num_batches
        if limit is None:
            return self._run_to_the_end(source, next_batches)
        if source.batches_per_pass is not None:
            limit = min(limit, source.batches_per_pass)
        workers, first = self._share.num_workers, self._share.worker_index
        total, done, mine = np.zeros([self._step.num_logged]), 0, None
        while done < limit and (wanted := next_batches(done)):
            end = min(limit, done + self._all_busy(wanted))
            if own := len(range(done + first, end, workers)):
                mine = mine or iter(
                    source.dataset(first, WorkerShare(), repeat=False, stride=workers)
                )
                total += self._sum_fn(mine, tf.constant(own, tf.int64)).numpy()
            done = end
        return self._add_over_workers(total)

    def _run_to_the_end(self, source: BatchSource, next_batches: NextBatches) -> np.ndarray:
        """Evaluate data of unknown size; workers go on together, though one may see its end."""
        whole = iter(source.dataset(0, WorkerShare(), repeat=False))
        total, done, is_left = np.zeros([self._step.num_logged]), 0, True
        while is_left and (wanted := next_batches(done)):
            end = done + self._all_busy(wanted)
            for batch in islice(whole, end - done):
                if done % self._share.num_workers == self._share.worker_index:
                    total += self._evaluate_one(batch).numpy()
                done += 1
            is_left = self._add_over_workers(np.array([done == end], np.float64))[0] > 0
            done = end
        return self._add_over_workers(total)

    def _all_busy(self, num_batches: int) -> int:
        """Return a number of batches, rounded up, that gives every replica as many."""
        return -(-num_batches // self._step.num_replicas) * self._step.num_replicas

    def _evaluate_batches(self, batches: Any, num_batches: tf.Tensor) -> tf.Tensor:
        total = tf.zeros([self._step.num_logged], tf.float64)
        is_spread = self._share.replicas_per_worker > 1
        devices = self._step.strategy.extended.worker_devices if is_spread else ()
        rounds = num_batches // max(1, len(devices)) if devices else tf.constant(0, tf.int64)
        for _ in tf.range(rounds):
            for device in devices:
                batch = next(batches)
                with tf.device(device):
                    total += self._evaluate_one(batch)
        for _ in tf.range(num_batches - rounds * len(devices)):
            total += self._evaluate_one(next(batches))
        return total

    @_PLAIN
    def _evaluate_one(self, batch: Any) -> tf.Tensor:
        x, y, sample_weight, num_rows = batch
        one = tf.ones((), tf.float32)
        share = Share(
            x, y, sample_weight, tf.cast(num_rows, tf.float32), one, one, one,
            tf.ones([len(self._step.structure.terms)], tf.float32),
        )  # fmt: skip
        seeds = step_seeds(self._step.structure, tf.constant(0, tf.int64), 0)
        values, _ = self._step.values(seeds, share, training=False)
        return tf.cast(self._evaluate_fn(values, share), tf.float64)

    def _add_over_workers(self, total: np.ndarray) -> np.ndarray:
        if self._share.num_workers == 1:
            return total
        return self._step.store.add_over_workers(total)
