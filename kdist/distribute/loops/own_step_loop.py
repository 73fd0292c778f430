"""The inner loop of a model that brings its own `train_step`: that method is run as it is.

On one replica this is what plain Keras does. On several (`strategy.allow_custom_train_step`) every
replica runs `train_step` on its rows, and what it does with their sums and means is its own affair.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.data.source import BatchSource
from kdist.distribute.loops.evaluation import scalars
from kdist.distribute.loops.inner_loop import NextBatches, OnProgress, all_at_once
from kdist.distribute.loops.own_store import OwnLogs, OwnStore, OwnSums
from kdist.distribute.model.structure import unique
from kdist.distribute.shares import WorkerShare, replica_in_block_op
from kdist.distribute.store.optimizer import adopt_optimizer, clone_optimizer
from kdist.distribute.store.replicated_store import to_numpy

_PLAIN = tf.autograph.experimental.do_not_convert
_SAID = "returned/"
_METRIC = "metric/"


class OwnStepLoop:
    """Runs `model.train_step` and `model.test_step`; see `InnerLoop`."""

    is_settled = False  # A step of one's own may update as often as it likes.

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        layout: BucketLayout,
        *,
        share: WorkerShare,
        source: BatchSource,
        jit_compile: bool = False,
    ):
        """Mirror the model's variables over the replicas, if there are several.

        Args:
            strategy: The strategy, or the default one.
            model: A built, compiled model; on several replicas its optimizer is replaced by a copy.
            layout: A bucket for each trainable variable.
            share: This process among the replicas; one worker.
            source: The training data.
            jit_compile: Whether XLA compiles a step.
        """
        self.strategy = strategy
        self.model = model
        self.share = share
        self._source = source
        self._batches: Iterator[Any] | None = None
        self._next_step = 0
        with strategy.scope():
            if share.num_replicas > 1:
                _mirror(model)
            self.store = OwnStore(model, adopt_optimizer(model, layout))
        if share.num_replicas > 1:
            self.store.further.refuse_replicas(share.num_replicas)
        self.logs = OwnLogs()
        self._rows = 0
        self._returned: Mapping[str, Any] = {}
        self._train_one = self._on_batch(model.train_step, jit_compile)
        self._train_many = tf.function(self._steps, reduce_retracing=True)
        test_one = self._on_batch(model.test_step, jit_compile=False)
        self._test_one = tf.function(test_one, reduce_retracing=True)

    def train(
        self, first_step: int, num_steps: int, *, steps_per_call: int, on_progress: OnProgress
    ) -> int:
        """Run steps; see `InnerLoop.train`."""
        if self._batches is None or first_step != self._next_step:
            self._batches = iter(self._source.dataset(first_step, WorkerShare(), repeat=True))
        done = 0
        while done < num_steps:
            size = min(steps_per_call, num_steps - done)
            self._returned, rows = self._train_many(self._batches, tf.constant(size, tf.int64))
            self._rows += int(rows)
            done += size
            self._next_step = first_step + done
            if on_progress(done):
                break
        return done

    def read_logs(self) -> OwnSums:
        """Return what the model's metrics say since `reset_logs`."""
        return OwnSums(num_rows=self._rows, logs=self._current(self._returned))

    def reset_logs(self) -> None:
        """Reset the model's metrics; an epoch begins."""
        self.model.reset_metrics()
        self._rows = 0

    def capture_sums(self) -> dict[str, np.ndarray]:
        """Return the rows trained, the state of the model's metrics, and what the last step said.

        A step need not return what the metrics hold.
        """
        metrics = {f"{_METRIC}{i}": to_numpy(v) for i, v in enumerate(self._metric_variables())}
        said = {f"{_SAID}{k}": np.asarray(v) for k, v in scalars(self._returned).items()}
        return {"rows": np.asarray(self._rows, np.int64), **metrics, **said}

    def restore_sums(self, sums: Mapping[str, np.ndarray]) -> bool:
        """Go on from captured metrics; see `InnerLoop.restore_sums`."""
        said = {k.removeprefix(_SAID): v for k, v in sums.items() if k.startswith(_SAID)}
        variables = self._metric_variables()
        values = [sums.get(f"{_METRIC}{index}") for index in range(len(variables))]
        if len(sums) != len(values) + len(said) + 1 or "rows" not in sums:
            return False
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        self._rows = int(sums["rows"])
        self._returned = said
        return True

    def capture_own(self) -> dict[str, np.ndarray]:
        """Return what optimizers that only the model's own step uses hold; see `OwnState`."""
        return self.store.further.values()

    def restore_own(self, values: Mapping[str, np.ndarray]) -> bool:
        """Give them what was captured; see `OwnState`."""
        return self.store.further.take(values)

    def make_variables(self, sums: Mapping[str, np.ndarray]) -> None:
        """Let the model make optimizers' and metrics' variables; see `OwnState`.

        Tracing a step does that, but on several replicas only running one does.
        """
        batches = iter(self._source.dataset(0, WorkerShare(), repeat=True))
        runs = self.share.num_replicas > 1
        train = self._train_many if runs else self._train_many.get_concrete_function
        train(batches, tf.constant(1, tf.int64))
        if len(self._metric_variables()) < sum(name.startswith(_METRIC) for name in sums):
            if runs:
                self._test_one(next(batches))
            else:
                self._test_one.get_concrete_function(batches.element_spec)

    def _metric_variables(self) -> list[keras.Variable]:
        return unique([v for metric in self.model.metrics for v in metric.variables])

    def evaluate(
        self,
        source: BatchSource,
        num_batches: int | None,
        next_batches: NextBatches = all_at_once,
    ) -> OwnSums:
        """Return the model's metrics over the first batches of a pass; see `InnerLoop.evaluate`.

        What they held of the epoch is lost, except where the evaluation is not finished.
        """
        trained = self.capture_sums()
        self.model.reset_metrics()
        returned, rows, is_whole = {}, 0, False
        limit = source.batches_per_pass if num_batches is None else num_batches
        batches = source.dataset(0, WorkerShare(), repeat=False)
        try:
            end = next_batches(0)
            for index, batch in enumerate(batches if limit is None else batches.take(limit)):
                if index == end:
                    if (more := next_batches(index)) == 0:
                        break
                    end += more
                returned, count = self._test_one(batch)
                rows += int(count)
            else:
                is_whole = True
            return OwnSums(num_rows=rows, logs=dict(self._current(returned)))
        finally:
            if not is_whole:
                self.restore_sums(trained)

    def _current(self, returned: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the metrics' results if they are what a step returns, else the last return."""
        try:
            results = self.model.get_metrics_result()
        except ValueError:  # Metrics given to compile() that the model's own step leaves alone.
            return returned
        return results if set(results) == set(returned) else returned

    def _steps(self, batches: Iterator[Any], num_steps: tf.Tensor) -> Any:
        returned, total = self._train_one(next(batches))
        for _ in tf.range(num_steps - 1):
            returned, rows = self._train_one(next(batches))
            total += rows
        return returned, total

    def _on_batch(self, step: Callable[[Any], Mapping[str, Any]], jit_compile: bool) -> Any:
        """Return a function from a batch to what `step` returns for it, and its rows."""
        if jit_compile:
            step = tf.function(step, jit_compile=True, reduce_retracing=True)

        @_PLAIN
        def on_batch(batch: Any) -> tuple[Mapping[str, Any], tf.Tensor]:
            x, y, sample_weight, num_rows = batch
            data = (x, y) if isinstance(sample_weight, tuple) else (x, y, sample_weight)
            if self.share.num_replicas == 1:
                return step(data), num_rows
            returned = self.strategy.run(lambda d, n: step(self._share_of(d, n)), (data, num_rows))
            means = {
                name: self.strategy.reduce("MEAN", value, axis=None)
                for name, value in returned.items()
            }
            return means, num_rows

        return on_batch

    def _share_of(self, data: Any, num_rows: tf.Tensor) -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        lo, hi, _ = replica_in_block_op(num_rows, self.share, replica)
        return keras.tree.map_structure(lambda leaf: leaf[lo:hi], data)


def _mirror(model: keras.Model) -> None:
    """Move a model's variables to every replica; metrics add up over them."""
    metrics = {id(v) for metric in model.metrics for v in metric.variables}
    for variable in unique([*model.variables, *model.metrics_variables]):
        options: dict[str, Any] = {"aggregation": tf.VariableAggregation.MEAN}
        if id(variable) in metrics:
            options = {
                "aggregation": tf.VariableAggregation.SUM,
                "synchronization": tf.VariableSynchronization.ON_READ,
            }
        elif not tf.as_dtype(variable.dtype).is_floating:
            options = {"aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        value = tf.Variable(variable.value, trainable=bool(variable.trainable), **options)
        keras_adapter.rebind(variable, value)
    model.optimizer = clone_optimizer(model.optimizer)
