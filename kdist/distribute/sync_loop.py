"""The inner loop of the synchronous modes: steps on every replica, several in one graph."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.data.source import BatchSource
from kdist.distribute.evaluation import SUMS, EpochLogs, restored
from kdist.distribute.feeds import feed_of
from kdist.distribute.inner_loop import NextBatches, OnProgress, all_at_once
from kdist.distribute.replica_step import ReplicaStep
from kdist.distribute.sync_evaluation import SyncEvaluation

# Most steps in one call of the runtime; longer calls are made of these.
UNROLLED_STEPS = 10


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
        self._step_fn = tf.function(self._train_one, autograph=False)
        self._run_fns: dict[int, Any] = {}

    def train(
        self, first_step: int, num_steps: int, *, steps_per_call: int, on_progress: OnProgress
    ) -> int:
        """Run steps; see `InnerLoop.train`."""
        self._step.trace()
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

    def _run_fn(self, num_steps: int) -> Any:
        """Return a function that runs `num_steps` steps, unrolled.

        A graph loop around the step would run the loops inside of it (LSTM) by a slower kernel
        (measured: 187 steps/s in a loop of ten, 295 without).
        """
        if num_steps not in self._run_fns:

            def run(first_step: tf.Tensor, *arguments: Any) -> None:
                for index, batch in enumerate(self._feed.batches(num_steps, *arguments)):
                    self._step_fn(batch, first_step + index)

            signature = self._feed.signature()
            if signature is not None:
                signature = (tf.TensorSpec([], tf.int64), *signature)
            self._run_fns[num_steps] = tf.function(run, autograph=False, input_signature=signature)
        return self._run_fns[num_steps]

    def _train_one(self, batch: Any, step_index: tf.Tensor) -> None:
        self._step.train(batch, step_index, self._sums)
