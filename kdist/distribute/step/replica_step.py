"""One step on every replica, as graph code: pull, compute, reduce, apply.

single, mirrored and multiworker differ in the strategy object only. A step pulls from the store,
computes on each replica's share, reduces once, and applies once.
"""

from typing import Any

import keras
import tensorflow as tf

from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.buckets.table_search import find_tables
from kdist.distribute.data.source import BatchSource
from kdist.distribute.model.loss_terms import VALID, WEIGHTS
from kdist.distribute.model.step_types import Contribution, Share, StepValues
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.shares import WorkerShare, replica_in_block_op
from kdist.distribute.step.compute import StepCompute
from kdist.distribute.step.row_exchange import FetchedRows, RowExchange
from kdist.distribute.step.signatures import (
    rows_per_share,
    share_specs,
    step_seeds,
    value_specs,
    with_num_rows,
)
from kdist.distribute.store.replicated_store import ReplicatedStore


class ReplicaStep:
    """The step of a model on the replicas of a strategy; every training task has one.

    Attributes:
        strategy, structure, share: What it was made of.
        compute: The step's pure function.
        store: The parameters, created here.
        num_logged: Length of the sums that a step adds to.
    """

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
        self._batch_spec = source.element_spec
        self._rows_are_global = source.kind != "per_worker"
        self._num_rows = rows_per_share(source.rows_per_batch, self.num_replicas)
        self._jit = jit_compile
        self._traces_in_replica = structure.has_synchronized_layers and self.num_replicas > 1
        self.compute = StepCompute(
            structure,
            layout,
            replicas_seen=self.num_replicas if self._traces_in_replica else 1,
            lookups=find_tables(structure, layout, source.element_spec[0], also_large=False),
        )
        self.num_logged = self.compute.aux.num_logged
        self.store = ReplicatedStore(strategy, structure, layout, share)
        self._rows = RowExchange(self.compute, layout, self.store.look_up)
        self._needs_denominators = self.num_replicas > 1 and any(
            term.denominator in (VALID, WEIGHTS) for term in structure.terms
        )
        self._train_fn: Any = None
        self._denominators_fn: Any = None

    def trace(self) -> None:
        """Trace the compute outside the strategy, where Keras sees one replica."""
        if self._train_fn is not None:
            return
        if self._traces_in_replica:
            self._train_fn = self.compute.train
            self._denominators_fn = lambda v, s: self.compute.denominators(v, s, training=True)
            return
        values = self.value_specs()
        share = share_specs(self.structure, self._batch_spec, self._num_rows)
        scale = tf.TensorSpec([], tf.float32)
        self._train_fn = tf.function(
            self.compute.train, jit_compile=self._jit, autograph=False
        ).get_concrete_function(values, share, scale)
        if self._needs_denominators:
            self._denominators_fn = tf.function(
                lambda v, s: self.compute.denominators(v, s, training=True), autograph=False
            ).get_concrete_function(values, share)

    def value_specs(self) -> StepValues:
        """Return the signature of what a forward pass reads."""
        return value_specs(self.structure, self.store.layout, self.compute.lookups)

    def values(
        self, seeds: list[tf.Tensor], share: Share, *, training: bool
    ) -> tuple[StepValues, list[FetchedRows]]:
        """Return what a forward pass reads, and the rows of tables among it."""
        values = self.store.read(seeds, leave_out=self.compute.lookups.bucket_indices)
        return self._rows.fetch(values, share.x, training=training)

    def train(self, batch: Any, step_index: tf.Tensor, sums: tf.Variable) -> None:
        """Run one step, in cross-replica context, after `trace`.

        Args:
            batch: `(x, y, sample_weight, num_global_rows)`: this worker's block of a global batch.
            step_index: int64 scalar, counted over the whole run.
            sums: float64 `[num_logged]`, what the step adds its logs to.
        """
        x, y, sample_weight, num_rows = batch
        scale = self.store.optimizer.loss_scale()
        args = (x, y, sample_weight, num_rows, step_index, scale)
        if self.num_replicas == 1:
            contribution = self._replica_step(*args)
        else:
            contribution = self._reduce(self.strategy.run(self._replica_step, args=args))
        logged = contribution.aux[: self.num_logged]
        sums.assign_add(tf.cast(logged, tf.float64))
        # Nothing of a step may happen, its counter included, whose batch could not be computed. (A
        # dependency on the call itself would not wait for what it returns.)
        with tf.control_dependencies([tf.identity(contribution.aux)]):
            self.store.apply(
                contribution.gradients, contribution.aux[self.num_logged :], contribution.int_states
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
        share = with_num_rows(share, self._num_rows)
        values, fetched = self.values(
            step_seeds(self.structure, step_index, replica), share, training=True
        )
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


def _rows(batch: Any, lo: Any, hi: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf[lo:hi], batch)


def _all_reduce(value: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
