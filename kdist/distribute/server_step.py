"""One step on parameter servers, as graph code: pull, compute, push. Runs in a worker.

The same code serves whoever drives the workers; it knows servers and tables, not dispatches.
"""

import contextlib
from typing import Any

import tensorflow as tf

from kdist.distribute.compute import StepCompute
from kdist.distribute.layout import BucketLayout
from kdist.distribute.lookups import find_tables
from kdist.distribute.server_store import ServerStore
from kdist.distribute.signatures import share_specs, step_seeds, value_specs
from kdist.distribute.step_types import Share, StepValues
from kdist.distribute.structure import ModelStructure

_PLAIN = tf.autograph.experimental.do_not_convert


class ServerStep:
    """The step of a model on servers; the chief makes it, outside a strategy."""

    def __init__(
        self,
        structure: ModelStructure,
        layout: BucketLayout,
        *,
        batch_spec: tuple[Any, Any, Any],
        jit_compile: bool = False,
        compute_device: str | None = None,
    ):
        """Create the store on the servers and trace the compute.

        Args:
            structure: The probed structure of the model.
            layout: Buckets dealt to the parameter servers.
            batch_spec: `(x, y, sample_weight)` nests of `tf.TensorSpec` of the training data.
            jit_compile: Whether XLA compiles the compute.
            compute_device: Where a worker computes, such as "/device:GPU:0"; `None` lets
                TensorFlow choose.
        """
        self._compute_device = compute_device
        self.structure = structure
        self._lookups = find_tables(structure, layout, batch_spec[0])
        self._compute = StepCompute(structure, layout, lookups=self._lookups)
        self.aux = self._compute.aux
        devices = [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(layout.num_servers)]
        self.store = ServerStore(structure, layout, self.aux, devices)
        self._value_specs = value_specs(structure, layout, self._lookups)
        self._train_fn = tf.function(
            self._compute.train, jit_compile=jit_compile, autograph=False
        ).get_concrete_function(
            self._value_specs, share_specs(structure, batch_spec), tf.TensorSpec([], tf.float32)
        )
        self._evaluate_fn: Any = None

    @_PLAIN
    def train(self, step_id: tf.Tensor, batch: Any, frozen: Any) -> None:
        """Run one training step.

        Args:
            step_id: int64 scalar; servers take each id once.
            batch: `(x, y, sample_weight, num_rows)` tensors.
            frozen: Values of the variables that no step writes.
        """
        scale = self.store.read_loss_scale()
        share = self._whole(batch)
        values = self._values(step_seeds(self.structure, step_id, 0), frozen)
        values, ids = self._with_rows(values, share.x, training=True)
        with self._on_compute_device():
            contribution = self._train_fn(values, share, scale)
        gradients = list(contribution.gradients)
        for table, table_ids in zip(self._lookups.tables, ids, strict=True):
            gradients[table.bucket_index] = _by_id(gradients[table.bucket_index], table_ids)
        self.store.push(step_id, gradients, contribution.aux, scale)

    def trace_evaluation(self, batch_spec: tuple[Any, Any, Any]) -> None:
        """Trace the evaluation for batches of this signature, once, outside a strategy."""
        if self._evaluate_fn is None:
            evaluate = tf.function(self._compute.evaluate, autograph=False)
            self._evaluate_fn = evaluate.get_concrete_function(
                self._value_specs, share_specs(self.structure, batch_spec)
            )

    @_PLAIN
    def values_to_evaluate(self, frozen: Any) -> StepValues:
        """Pull what evaluations read; they may share it."""
        return self._values(step_seeds(self.structure, tf.constant(0, tf.int64), 0), frozen)

    @_PLAIN
    def evaluate(self, evaluation_id: tf.Tensor, values: StepValues, batch: Any) -> None:
        """Evaluate one batch and add its part to the store's evaluation sums, once for each id."""
        share = self._whole(batch)
        values, _ = self._with_rows(values, share.x, training=False)
        with self._on_compute_device():
            logged = self._evaluate_fn(values, share)
        self.store.record_evaluation(evaluation_id, logged)

    def _on_compute_device(self) -> Any:
        device = self._compute_device
        return contextlib.nullcontext() if device is None else tf.device(device)

    @_PLAIN
    def _with_rows(
        self, values: StepValues, x: Any, *, training: bool
    ) -> tuple[StepValues, list[tf.Tensor]]:
        """Fetch the rows that this batch reads of each table.

        Returns:
            The values, with unique rows in place of tables, and the ids of those rows by table.
        """
        if not self._lookups.tables:
            return values, []
        buckets, positions, unique_ids = list(values.buckets), [], []
        for table, calls in zip(
            self._lookups.tables,
            self._compute.looked_up_ids(values, x, training=training),
            strict=True,
        ):
            ids, where = tf.unique(tf.concat(calls, 0))
            buckets[table.bucket_index] = self.store.look_up(table.bucket_index, ids)
            positions.append(tf.split(where, [tf.size(call) for call in calls], num=len(calls)))
            unique_ids.append(ids)
        return values._replace(buckets=buckets, positions=positions), unique_ids

    def _values(self, seeds: list[tf.Tensor], frozen: Any) -> StepValues:
        return StepValues(
            buckets=self.store.read_buckets(leave_out=self._lookups.bucket_indices),
            float_states=self.store.read_states(),
            int_states=[],
            seeds=seeds,
            frozen=list(frozen),
            positions=[],
        )

    @_PLAIN
    def _whole(self, batch: Any) -> Share:
        x, y, sample_weight, num_rows = batch
        one = tf.ones((), tf.float32)
        terms = tf.ones([len(self.structure.terms)], tf.float32)
        return Share(x, y, sample_weight, tf.cast(num_rows, tf.float32), one, one, one, terms)


def _by_id(gradient: tf.IndexedSlices, ids: tf.Tensor) -> tf.IndexedSlices:
    """Return a gradient whose indices count the unique rows of a step, with row ids instead."""
    return tf.IndexedSlices(gradient.values, tf.gather(ids, gradient.indices), gradient.dense_shape)
