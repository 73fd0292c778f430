"""The inner loop of the synchronous modes: steps on every replica, several in a call."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.data.source import BatchSource
from kdist.distribute.loops.evaluation import SUMS, EpochLogs, restored
from kdist.distribute.loops.feeds import feed_of
from kdist.distribute.loops.inner_loop import NextBatches, OnProgress, all_at_once
from kdist.distribute.loops.sync_evaluation import SyncEvaluation
from kdist.distribute.step.replica_step import ReplicaStep

# Most steps in one call of the runtime. More gain nothing, and signals are seen between calls.
MAX_STEPS_PER_CALL = 10


class SyncLoop:
    """Runs exact numbers of training steps and whole evaluations; every training task has one."""

    is_settled = True

    def __init__(self, step: ReplicaStep, source: BatchSource):
        """Trace nothing yet.

        Args:
            step: The step, made for the training data.
            source: The training data.
        """
        self._step = step
        self._share = step.share
        self._feed = feed_of(source, step.share)
        self.store = step.store
        self.logs = EpochLogs(step.structure, step.compute.aux)
        self._sums = tf.Variable(tf.zeros([step.num_logged], tf.float64))
        self._evaluation: SyncEvaluation | None = None
        self._train_one_fn = self._traced(self._train_one)
        self._train_many_fn = self._traced(self._train_many)

    def train(
        self, first_step: int, num_steps: int, *, steps_per_call: int, on_progress: OnProgress
    ) -> int:
        """Run steps; see `InnerLoop.train`."""
        self._step.trace()
        train = self._train_one_fn if steps_per_call == 1 else self._train_many_fn
        done = 0
        while done < num_steps:
            longest = min(steps_per_call, MAX_STEPS_PER_CALL, num_steps - done)
            size, batches = self._feed.take(first_step + done, longest)
            train(tf.constant([first_step + done, size], tf.int64), *batches)
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
        if self._share.num_workers > 1:
            mine = self.read_logs() * (self._share.worker_index == 0)
            self._sums.assign(self.store.add_over_workers(mine))
        return fits

    def evaluate(
        self,
        source: BatchSource,
        num_batches: int | None,
        next_batches: NextBatches = all_at_once,
    ) -> np.ndarray:
        """Return exact sums; see `InnerLoop.evaluate`."""
        if self._evaluation is None:
            self._evaluation = SyncEvaluation(self._step, source.element_spec)
        return self._evaluation.run(source, num_batches, next_batches)

    def _traced(self, train: Callable[..., None]) -> Any:
        signature = self._feed.signature()
        if signature is not None:
            signature = (tf.TensorSpec([2], tf.int64), *signature)
        return tf.function(train, autograph=False, input_signature=signature)

    def _train_one(self, first_and_number: tf.Tensor, *arguments: Any) -> None:
        """Run one step; a loop around it would cost small models a tenth of their speed."""
        batch_of = self._feed.reader(*arguments)
        self._step.train(batch_of(tf.constant(0, tf.int64)), first_and_number[0], self._sums)

    def _train_many(self, first_and_number: tf.Tensor, *arguments: Any) -> None:
        """Run steps in a graph loop: one trace, of one step, for any number of them."""
        first_step, num_steps = tf.unstack(first_and_number)
        batch_of = self._feed.reader(*arguments)

        def train_next(step: tf.Tensor) -> tuple[tf.Tensor]:
            self._step.train(batch_of(step), first_step + step, self._sums)
            return (step + 1,)

        tf.while_loop(lambda step: step < num_steps, train_next, (tf.constant(0, tf.int64),))
