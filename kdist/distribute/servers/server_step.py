"""One step on parameter servers, as graph code: pull, compute, push. Runs in a worker.

The same code serves whoever drives the workers; it knows servers and tables, not dispatches.
"""

import contextlib
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.buckets.table_search import find_tables
from kdist.distribute.model.process_bound import refuse_python_calls
from kdist.distribute.model.step_types import Share, StepValues
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.servers.packets import Pulled
from kdist.distribute.servers.server_store import Scope, ServerStore
from kdist.distribute.step.compute import StepCompute
from kdist.distribute.step.row_exchange import RowExchange
from kdist.distribute.step.signatures import share_specs, step_seeds, value_specs, with_num_rows

_PLAIN = tf.autograph.experimental.do_not_convert


class ServerStep:
    """The step of a model on servers; the chief makes it, outside a strategy."""

    def __init__(
        self,
        structure: ModelStructure,
        layout: BucketLayout,
        *,
        batch_spec: tuple[Any, Any, Any],
        num_rows: int | None = None,
        jit_compile: bool = False,
        compute_device: str | None = None,
        scope: Scope = contextlib.nullcontext,
        max_staleness: int | None = None,
    ):
        """Create the store on the servers and trace the compute.

        Args:
            structure: The probed structure of the model.
            layout: Buckets dealt to the parameter servers.
            batch_spec: `(x, y, sample_weight)` nests of `tf.TensorSpec` of the training data.
            num_rows: Rows of every share that is trained on, `None` if they differ.
            jit_compile: Whether XLA compiles the compute.
            compute_device: Where a worker computes, such as "/device:GPU:0"; `None` lets
                TensorFlow choose.
            scope: Makes the context that the store's variables are created in.
            max_staleness: Most updates that may have been applied since a step began to read;
                what is older is computed again. `None` for any.

        Raises:
            ConfigError: If the step calls what only this process has.
        """
        self._compute_device = compute_device
        self.structure = structure
        self._lookups = find_tables(structure, layout, batch_spec[0])
        self._compute = StepCompute(structure, layout, lookups=self._lookups)
        self.aux = self._compute.aux
        devices = [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(layout.num_servers)]
        self.store = ServerStore(
            structure, layout, self.aux, devices, scope=scope, max_staleness=max_staleness
        )
        self._rows = RowExchange(self._compute, layout, self.store.look_up)
        self._value_specs = value_specs(structure, layout, self._lookups)
        self._share_specs = share_specs(structure, batch_spec)
        self._num_rows = num_rows
        self._train_fn = tf.function(
            self._compute.train, jit_compile=jit_compile, autograph=False
        ).get_concrete_function(
            self._value_specs,
            share_specs(structure, batch_spec, num_rows),
            tf.TensorSpec([], tf.float32),
        )
        refuse_python_calls(self._train_fn)
        self._denominators_fn: Any = None
        self._evaluate_fn: Any = None

    @_PLAIN
    def train(self, step_id: tf.Tensor, batch: Any, frozen: Any, *, worker: Any = 0) -> None:
        """Run one training step; compute it again for as long as it comes too late.

        Args:
            step_id: int64 scalar; servers take each id once.
            batch: `(x, y, sample_weight, num_rows)` tensors.
            frozen: Values of the variables that no step writes.
            worker: Index of the worker, for the records.
        """
        share, seeds = self.whole(batch), step_seeds(self.structure, step_id, 0)

        def attempt() -> tf.Tensor:
            gradients, aux, pulled = self.contribution(share, seeds, frozen)
            return self.store.push(step_id, gradients, aux, pulled, worker=worker)

        if self.store.max_staleness is None:
            attempt()
            return
        tf.while_loop(
            tf.logical_not,
            lambda is_taken: (attempt(),),
            (tf.constant(False),),
            parallel_iterations=1,
        )

    @_PLAIN
    def contribution(
        self,
        share: Share,
        seeds: list[tf.Tensor],
        frozen: Any,
        *,
        weight: tf.Tensor | None = None,
        pulled: Pulled | None = None,
    ) -> tuple[list[Any], tf.Tensor, Pulled]:
        """Pull and compute.

        Args:
            share: Rows of a batch.
            seeds: Of the random layers.
            frozen: Values of the variables that no step writes.
            weight: A factor for the gradients, float32 scalar.
            pulled: What the caller has pulled, if it has.

        Returns:
            Gradients by bucket of the scaled loss, the vector of `AuxLayout`, what was pulled.
        """
        pulled = pulled or self.store.pull(leave_out=self.looked_up)
        scale = pulled.loss_scale
        values = _step_values(pulled, seeds, frozen)
        values, fetched = self._rows.fetch(values, share.x, training=True)
        with self._on_compute_device():
            factor = scale if weight is None else scale * weight
            share = with_num_rows(share, self._num_rows)
            contribution = self._train_fn(values, share, factor)
        gradients = self._rows.by_id(contribution.gradients, fetched)
        return gradients, contribution.aux, pulled

    @_PLAIN
    def denominators(
        self, share: Share, seeds: list[tf.Tensor], frozen: Any, pulled: Pulled
    ) -> tf.Tensor:
        """Return a share's denominators: float32 `[number of loss terms]`, vote included.

        What they do not depend on is not computed.
        """
        if self._denominators_fn is None:
            compute = self._compute
            self._denominators_fn = tf.function(
                lambda v, s: compute.denominators(v, s, training=True), autograph=False
            ).get_concrete_function(self._value_specs, self._share_specs)
        values = _step_values(pulled, seeds, frozen)
        values, _ = self._rows.fetch(values, share.x, training=True)
        return self._denominators_fn(values, share)

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
        share = self.whole(batch)
        values, _ = self._rows.fetch(values, share.x, training=False)
        with self._on_compute_device():
            logged = self._evaluate_fn(values, share)
        self.store.record_evaluation(evaluation_id, logged)

    def _on_compute_device(self) -> Any:
        device = self._compute_device
        return contextlib.nullcontext() if device is None else tf.device(device)

    @property
    def looked_up(self) -> Collection[int]:
        """Return the buckets that are not pulled: steps look up the rows that they need."""
        return self._lookups.bucket_indices

    def _values(self, seeds: list[tf.Tensor], frozen: Any) -> StepValues:
        return _step_values(self.store.pull(leave_out=self.looked_up), seeds, frozen)

    @_PLAIN
    def whole(self, batch: Any) -> Share:
        """Return a batch `(x, y, sample_weight, num_rows)` as a share that is all of it."""
        x, y, sample_weight, num_rows = batch
        one = tf.ones((), tf.float32)
        terms = tf.ones([len(self.structure.terms)], tf.float32)
        return Share(x, y, sample_weight, tf.cast(num_rows, tf.float32), one, one, one, terms)


def _step_values(pulled: Pulled, seeds: list[tf.Tensor], frozen: Any) -> StepValues:
    return StepValues(
        buckets=pulled.buckets,
        float_states=pulled.float_states,
        int_states=[],
        seeds=seeds,
        frozen=list(frozen),
        positions=[],
    )
