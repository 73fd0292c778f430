"""The inner loop of synchronous parameter servers: the chief opens stretches, workers take turns.

One dispatch for each replica runs as long as a stretch of steps does. So the chief does nothing for
a single step, and a worker that is slow, or lost, is waited for only where a step needs it.
"""

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kdist.distribute.aggregation.aggregation import Aggregation
from kdist.distribute.aggregation.share_step import ArrayReader, SentReader, ShareStep
from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.data.array_source import ArraySource
from kdist.distribute.data.source import BatchSource
from kdist.distribute.loops.coordinator_loop import (
    POLL_S,
    PROGRESS_EVERY_S,
    CoordinatorLoop,
)
from kdist.distribute.loops.dispatched_evaluation import as_int64
from kdist.distribute.loops.dispatches import worker_index
from kdist.distribute.loops.inner_loop import OnProgress
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.shares import WorkerShare

# How long a step may take before replicas that wait are woken to ask again.
WAKE_AFTER_S = 0.3
# How long operations of the chief may fail because the cluster changes.
CHANGE_TIMEOUT_S = 30.0
# How often the chief asks the first server how far a stretch is.
ASK_EVERY_S = 0.03
# How often the chief looks whether a step is over whose batch it has sent.
SENT_POLL_S = 0.001


class AggregatingLoop(CoordinatorLoop):
    """Drives workers and servers from the chief; each update is the mean of N shares."""

    def __init__(
        self,
        strategy: tf.distribute.ParameterServerStrategy,
        structure: ModelStructure,
        layout: BucketLayout,
        *,
        source: BatchSource,
        num_workers: int,
        num_shares: int,
        num_replicas: int,
        batch_size: int,
        jit_compile: bool = False,
        check_cluster: Callable[[], None] = lambda: None,
    ):
        """Create the store on the servers and trace what they do.

        Args:
            strategy: Connected to its cluster.
            structure: The probed structure of the model.
            layout: Buckets dealt to the parameter servers.
            source: The training data.
            num_workers: Workers of the cluster.
            num_shares: Shares that make an update.
            num_replicas: Replicas that compute shares.
            batch_size: Rows of a full global batch.
            jit_compile: Whether XLA compiles the compute.
            check_cluster: Called while waiting; raises when waiting has no sense any more.
        """
        super().__init__(
            strategy,
            structure,
            layout,
            source=source,
            num_workers=num_workers,
            num_shares=num_shares,
            jit_compile=jit_compile,
            check_cluster=check_cluster,
        )
        self.aggregation = Aggregation(
            self.store,
            num_shares=num_shares,
            num_replicas=num_replicas,
            batch_size=batch_size,
            looked_up=self._step.looked_up,
        )
        self._share_step = ShareStep(self._step, self.aggregation)
        self._turns_fn: Any = None
        self._dispatched = [0] * num_replicas
        self._after_stretch = _Reminder(WAKE_AFTER_S)

    def train(
        self, first_step: int, num_steps: int, *, steps_per_call: int, on_progress: OnProgress
    ) -> int:
        """Run steps on all workers; see `InnerLoop.train`."""
        del steps_per_call  # The chief takes no part in single steps anyway.
        if self._data.holds(self._source):
            self._run_stretch(first_step, num_steps, (), on_progress)
            on_progress(num_steps)
            return num_steps
        if self._fed is None:
            self._fed = iter(self._source.dataset(first_step, WorkerShare(), repeat=True))
        done = 0
        while done < num_steps:
            self._run_stretch(first_step + done, 1, self._next_batch(), on_progress)
            done += 1
            if on_progress(done):
                break
        return done

    def _next_batch(self) -> Any:
        try:
            return next(self._fed)
        except Exception:
            self.is_settled = True  # All steps before this batch are applied.
            raise

    def _run_stretch(
        self, first_step: int, num_steps: int, batch: Any, on_progress: OnProgress
    ) -> None:
        """Run steps; with a batch that is sent along, one step."""
        iterator = self._data.iterator(self._source if not batch else None)
        if self._turns_fn is None:
            self._turns_fn = self._trace_turns()
        stretch = self._patiently(lambda: self.aggregation.open(first_step, num_steps))
        stuck = _Reminder(WAKE_AFTER_S)
        progress = _Reminder(PROGRESS_EVERY_S)
        self._waiting_since_s = time.monotonic()
        while True:
            dealing = self._patiently(self.aggregation.read)
            step = int(dealing.step)
            if step >= first_step + num_steps:
                break
            for replica, ended in enumerate(dealing.ended):
                if self._dispatched[replica] < stretch and ended >= self._dispatched[replica]:
                    self._dispatched[replica] = stretch
                    args = (iterator, *as_int64(replica, stretch), batch)
                    self._coordinator.schedule(self._turns_fn, args=args)
            if self._coordinator.done():
                self._coordinator.join()  # Raises what ended the dispatches.
            if stuck.is_due(int(dealing.issued)):
                self._patiently(self.aggregation.wake)
            if progress.is_due(None):
                on_progress(step - first_step)
            self._nap(ASK_EVERY_S if not batch else SENT_POLL_S)
        self._patiently(self.aggregation.finish)
        self._patiently(self.aggregation.wake)

    def _remind(self) -> None:
        """Let replicas of a stretch that is over end."""
        if self._after_stretch.is_due(None):
            self._patiently(self.aggregation.wake)

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Return what `ask` finds on the servers; ask again where a change of the cluster gets in.

        While TensorFlow takes up a worker that is back, operations of the chief may fail. A server
        that is lost ends the wait by `check_cluster`, or by what the dispatches failed with.
        """
        end_s = time.monotonic() + CHANGE_TIMEOUT_S
        while True:
            try:
                return ask()
            except tf.errors.OpError:
                self._check_cluster()
                self._coordinator.done()
                if time.monotonic() >= end_s:
                    raise
                time.sleep(POLL_S)

    def _trace_turns(self) -> Any:
        is_sent = not self._data.holds(self._source)

        @tf.function
        def turns(iterator: Any, replica: tf.Tensor, stretch: tf.Tensor, batch: Any) -> tf.Tensor:
            arrays, frozen = self._data.open(iterator)
            if is_sent:
                reader = SentReader(batch)
            else:
                assert isinstance(self._source, ArraySource)
                reader = ArrayReader(self._source, arrays)
            return self._share_step.run(replica, stretch, worker_index(), reader, frozen)

        return turns


class _Reminder:
    """Says when something is due: some time after the last change of what it is shown."""

    def __init__(self, after_s: float):
        self._after_s = after_s
        self._seen: Any = None
        self._due_s = time.monotonic() + after_s

    def is_due(self, fact: Any) -> bool:
        now = time.monotonic()
        if fact != self._seen:
            self._seen, self._due_s = fact, now + self._after_s
        elif now >= self._due_s:
            self._due_s = now + self._after_s
            return True
        return False
