"""The inner loop of the synchronous modes: one step, on every replica, in one graph.

single, mirrored and multiworker differ in the strategy object only. A step pulls from the store,
computes on each replica's share, reduces once, and applies once.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute.compute import StepCompute
from kdist.distribute.data.source import BatchSource
from kdist.distribute.evaluation import SUMS, EpochLogs, restored
from kdist.distribute.feeds import feed_of
from kdist.distribute.inner_loop import NextBatches, OnProgress, all_at_once
from kdist.distribute.layout import BucketLayout
from kdist.distribute.loss_terms import VALID, WEIGHTS
from kdist.distribute.row_exchange import FetchedRows, RowExchange
from kdist.distribute.shares import WorkerShare, replica_in_block_op
from kdist.distribute.signatures import share_specs, step_seeds, value_specs
from kdist.distribute.step_types import Contribution, Share, StepValues
from kdist.distribute.store import ReplicatedStore
from kdist.distribute.structure import ModelStructure
from kdist.distribute.table_search import find_tables

# Most steps in one call of the runtime; longer calls are made of these.
UNROLLED_STEPS = 10
# Python as written: only the loops over steps are turned into graph loops.
_PLAIN = tf.autograph.experimental.do_not_convert


class SyncLoop:
    """Runs exact numbers of training steps and whole evaluations; every training task has one."""

    is_settled = True

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        structure: ModelStructure,
        layout: BucketLayout,
        *,
        share: WorkerShare,
        source: BatchSource,
        jit_compile: bool = False,
    ):
        """Create the store and trace nothing yet.

        Args:
            strategy: The strategy, or the default one.
            structure: The probed structure of the model.
            layout: The buckets of its parameters.
            share: This worker's position among the replicas.
            source: The training data; a "per_worker" source does not know how many rows a global
                batch has, so the workers add up their own.
            jit_compile: Whether XLA compiles the compute.
        """
        self.strategy = strategy
        self.structure = structure
        self.share = share
        self.num_replicas = strategy.num_replicas_in_sync
        self._source = source
        self._feed = feed_of(source, share)
        self._rows_are_global = source.kind != "per_worker"
        self._jit = jit_compile
        self._traces_in_replica = structure.has_synchronized_layers and self.num_replicas > 1
        self.compute = StepCompute(
            structure,
            layout,
            replicas_seen=self.num_replicas if self._traces_in_replica else 1,
            lookups=find_tables(structure, layout, source.element_spec[0], also_large=False),
        )
        self.store = ReplicatedStore(strategy, structure, layout, share)
        self._rows = RowExchange(self.compute, layout, self.store.look_up)
        self.logs = EpochLogs(structure, self.compute.aux)
        self._sums = tf.Variable(tf.zeros([self.compute.aux.num_logged], tf.float64))
        self._needs_denominators = self.num_replicas > 1 and any(
            term.denominator in (VALID, WEIGHTS) for term in structure.terms
        )
        self._train_fn: Any = None
        self._denominators_fn: Any = None
        self._evaluate_fn: Any = None
        self._step_fn = tf.function(self._step, autograph=False)
        self._run_fns: dict[int, Any] = {}
        self._sum_evaluation = tf.function(self._evaluate_batches)

    # training

    def train(
        self, first_step: int, num_steps: int, *, steps_per_call: int, on_progress: OnProgress
    ) -> int:
        """Run steps; see `InnerLoop.train`."""
        self._ensure_traced()
        done = 0
        while done < num_steps:
            longest = min(steps_per_call, UNROLLED_STEPS, num_steps - done)
            size, batches = self._feed.take(first_step + done, longest)
            self._run_fn(size)(tf.constant(first_step + done, tf.int64), *batches)
            done += size
            if on_progress(done):
                break
        return done

    def read_logs(self) -> np.ndarray:
        """Return the sums since the last reset: float64 `[num_logged]`, over all replicas."""
        return self._sums.numpy()

    def reset_logs(self) -> None:
        """Forget the sums; an epoch begins."""
        self._sums.assign(tf.zeros_like(self._sums))

    def capture_sums(self) -> dict[str, np.ndarray]:
        """Return the sums since the last reset."""
        return {SUMS: self.read_logs()}

    def restore_sums(self, sums: Mapping[str, np.ndarray]) -> bool:
        """Go on from captured sums, on all workers from the chief's; see `InnerLoop`."""
        fits = restored(self._sums, sums)
        if self.share.num_workers > 1:
            mine = self.read_logs() * (self.share.worker_index == 0)
            self._sums.assign(self.store.add_over_workers(mine))
        return fits

    def _run_fn(self, num_steps: int) -> Any:
        """Return a function that runs `num_steps` steps, unrolled.

        A graph loop around the step would run the loops inside of it (LSTM) by a slower kernel
        (measured: 187 steps/s in a loop of ten, 295 without).
        """
        if num_steps not in self._run_fns:

            def run(first_step: tf.Tensor, *arguments: Any) -> None:
                for index, batch in enumerate(self._feed.batches(num_steps, *arguments)):
                    self._step_fn(*batch, first_step + index)

            signature = self._feed.signature()
            if signature is not None:
                signature = (tf.TensorSpec([], tf.int64), *signature)
            self._run_fns[num_steps] = tf.function(run, autograph=False, input_signature=signature)
        return self._run_fns[num_steps]

    @_PLAIN
    def _step(
        self, x: Any, y: Any, sample_weight: Any, num_rows: tf.Tensor, step_index: tf.Tensor
    ) -> None:
        scale = self.store.optimizer.loss_scale()
        args = (x, y, sample_weight, num_rows, step_index, scale)
        if self.num_replicas == 1:
            contribution = self._replica_step(*args)
        else:
            contribution = self._reduce(self.strategy.run(self._replica_step, args=args))
        num_logged = self.compute.aux.num_logged
        self._sums.assign_add(tf.cast(contribution.aux[:num_logged], tf.float64))
        # Nothing of a step may happen, its counter included, whose batch could not be computed. (A
        # dependency on the call itself would not wait for what it returns.)
        with tf.control_dependencies([tf.identity(contribution.aux)]):
            self.store.apply(
                contribution.gradients, contribution.aux[num_logged:], contribution.int_states
            )

    def _replica_step(
        self,
        x: Any,
        y: Any,
        sample_weight: Any,
        num_rows: tf.Tensor,
        step_index: tf.Tensor,
        loss_scale: tf.Tensor,
    ) -> Contribution:
        replica = self._replica_index()
        share = self._share_of(x, y, sample_weight, num_rows, replica)
        values, fetched = self._values(step_seeds(self.structure, step_index, replica), share)
        if self._needs_denominators:
            local = self._denominators_fn(values, share)
            total = _all_reduce(local)
            share = share._replace(term_ratios=tf.math.divide_no_nan(local, total))
        contribution = self._train_fn(values, share, loss_scale)
        contribution = contribution._replace(
            gradients=self._rows.by_id(contribution.gradients, fetched)
        )
        if self.num_replicas == 1:
            return contribution
        ints = [value * tf.cast(share.is_first, value.dtype) for value in contribution.int_states]
        return contribution._replace(int_states=ints)

    def _values(
        self, seeds: list[tf.Tensor], share: Share, *, training: bool = True
    ) -> tuple[StepValues, list[FetchedRows]]:
        """Return what a forward pass reads, and the rows of tables among it."""
        values = self.store.read(seeds, leave_out=self.compute.lookups.bucket_indices)
        return self._rows.fetch(values, share.x, training=training)

    def _replica_index(self) -> Any:
        if self.num_replicas == 1:
            return 0
        return tf.distribute.get_replica_context().replica_id_in_sync_group

    def _share_of(
        self, x: Any, y: Any, sample_weight: Any, num_rows: tf.Tensor, replica: Any
    ) -> Share:
        ones = tf.ones([len(self.structure.terms)], tf.float32)
        one = tf.ones((), tf.float32)
        if self.num_replicas == 1:
            rows = tf.cast(num_rows, tf.float32)
            return Share(x, y, sample_weight, rows, one, one, one, ones)
        if not self._rows_are_global:
            return self._share_of_own_batch(x, y, sample_weight, replica, ones)
        in_worker = tf.cast(replica, tf.int64) - self.share.first_replica
        lo, hi, vote = replica_in_block_op(num_rows, self.share, in_worker)
        if self.share.replicas_per_worker > 1:
            x, y, sample_weight = _rows((x, y, sample_weight), lo, hi)
        vote = tf.cast(vote, tf.float32)
        rows = tf.cast(num_rows, tf.float32)
        ratio = vote * tf.cast(hi - lo, tf.float32) / rows
        is_first = tf.cast(tf.equal(replica, 0), tf.float32)
        return Share(x, y, sample_weight, rows, ratio, vote, is_first, ones * vote)

    def _share_of_own_batch(
        self, x: Any, y: Any, sample_weight: Any, replica: Any, ones: tf.Tensor
    ) -> Share:
        """Split this worker's own batch over its replicas; the workers add up their rows."""
        local = WorkerShare(replicas_per_worker=self.share.replicas_per_worker)
        in_worker = tf.cast(replica, tf.int64) - self.share.first_replica
        block = tf.shape(keras.tree.flatten(x)[0], out_type=tf.int64)[0]
        lo, hi, vote = replica_in_block_op(block, local, in_worker)
        x, y, sample_weight = _rows((x, y, sample_weight), lo, hi)
        vote = tf.cast(vote, tf.float32)
        own = vote * tf.cast(hi - lo, tf.float32)
        rows = _all_reduce(own)
        is_first = tf.cast(tf.equal(replica, 0), tf.float32)
        return Share(x, y, sample_weight, rows, own / rows, vote, is_first, ones * vote)

    def _reduce(self, contribution: Contribution) -> Contribution:
        """Add up over all replicas: one collective for all flat float32 parts."""
        flat = [
            index
            for index, bucket in enumerate(self.store.layout.buckets)
            if bucket.is_flat and bucket.dtype == "float32"
        ]
        sizes = [self.store.layout.buckets[index].size for index in flat]
        joined = self.strategy.run(
            lambda c: tf.concat([*(c.gradients[i] for i in flat), c.aux], 0), args=(contribution,)
        )
        total = self.strategy.reduce("SUM", joined, axis=None)
        parts = tf.split(total, [*sizes, int(total.shape[0]) - sum(sizes)])
        gradients = [
            None if index in flat else self.strategy.reduce("SUM", gradient, axis=None)
            for index, gradient in enumerate(contribution.gradients)
        ]
        for index, part in zip(flat, parts[:-1], strict=True):
            gradients[index] = part
        ints = [self.strategy.reduce("SUM", v, axis=None) for v in contribution.int_states]
        return Contribution(gradients, parts[-1], ints)

    def _ensure_traced(self) -> None:
        """Trace the compute outside the strategy, where Keras sees one replica."""
        if self._train_fn is not None:
            return
        if self._traces_in_replica:
            self._train_fn = self.compute.train
            self._denominators_fn = lambda v, s: self.compute.denominators(v, s, training=True)
            return
        values, share = self._specs()
        scale = tf.TensorSpec([], tf.float32)
        self._train_fn = tf.function(
            self.compute.train, jit_compile=self._jit, autograph=False
        ).get_concrete_function(values, share, scale)
        if self._needs_denominators:
            self._denominators_fn = tf.function(
                lambda v, s: self.compute.denominators(v, s, training=True), autograph=False
            ).get_concrete_function(values, share)

    def _specs(self) -> tuple[StepValues, Share]:
        values = value_specs(self.structure, self.store.layout, self.compute.lookups)
        return values, share_specs(self.structure, self._source.element_spec)

    # evaluation

    def evaluate(
        self,
        source: BatchSource,
        num_batches: int | None,
        next_batches: NextBatches = all_at_once,
    ) -> np.ndarray:
        """Return exact sums; see `InnerLoop.evaluate`.

        Each replica evaluates whole batches, so that any loss and metric is exact.
        """
        if self._evaluate_fn is None:
            values, _ = self._specs()
            evaluate = tf.function(self.compute.evaluate, autograph=False)
            self._evaluate_fn = evaluate.get_concrete_function(
                values, share_specs(self.structure, source.element_spec)
            )
        limit = source.batches_per_pass if num_batches is None else num_batches
        if limit is None:
            return self._evaluate_to_the_end(source, next_batches)
        if source.batches_per_pass is not None:
            limit = min(limit, source.batches_per_pass)
        workers, first = self.share.num_workers, self.share.worker_index
        total, done, mine = np.zeros([self.compute.aux.num_logged]), 0, None
        while done < limit and (wanted := next_batches(done)):
            end = min(limit, done + self._all_busy(wanted))
            if own := len(range(done + first, end, workers)):
                mine = mine or iter(
                    source.dataset(first, WorkerShare(), repeat=False, stride=workers)
                )
                total += self._sum_evaluation(mine, tf.constant(own, tf.int64)).numpy()
            done = end
        return self._add_over_workers(total)

    def _evaluate_to_the_end(self, source: BatchSource, next_batches: NextBatches) -> np.ndarray:
        """Evaluate data of unknown size; workers go on together, though one may see its end."""
        whole = iter(source.dataset(0, WorkerShare(), repeat=False))
        total, done, is_left = np.zeros([self.compute.aux.num_logged]), 0, True
        while is_left and (wanted := next_batches(done)):
            end = done + self._all_busy(wanted)
            for batch in islice(whole, end - done):
                if done % self.share.num_workers == self.share.worker_index:
                    total += self._evaluate_one(batch).numpy()
                done += 1
            is_left = self._add_over_workers(np.array([done == end], np.float64))[0] > 0
            done = end
        return self._add_over_workers(total)

    def _all_busy(self, num_batches: int) -> int:
        """Return a number of batches, rounded up, that gives every replica as many."""
        return -(-num_batches // self.num_replicas) * self.num_replicas

    def _evaluate_batches(self, batches: Any, num_batches: tf.Tensor) -> tf.Tensor:
        total = tf.zeros([self.compute.aux.num_logged], tf.float64)
        devices = (
            self.strategy.extended.worker_devices if self.share.replicas_per_worker > 1 else ()
        )
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
            tf.ones([len(self.structure.terms)], tf.float32),
        )  # fmt: skip
        seeds = step_seeds(self.structure, tf.constant(0, tf.int64), 0)
        values, _ = self._values(seeds, share, training=False)
        return tf.cast(self._evaluate_fn(values, share), tf.float64)

    def _add_over_workers(self, total: np.ndarray) -> np.ndarray:
        if self.share.num_workers == 1:
            return total
        return self.store.add_over_workers(total)


def _rows(batch: Any, lo: Any, hi: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf[lo:hi], batch)


def _all_reduce(value: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
