"""The inner loop of asynchronous parameter servers: the chief deals out steps, workers push.

In-graph replication (`tf.distribute.coordinator.ClusterCoordinator`). A dispatch carries step ids;
a step's rows are a function of its id, and servers skip ids that they have applied. So a dispatch
that the coordinator runs again after a worker was lost neither loses nor repeats an update.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.data.source import BatchSource
from kdist.distribute.loops.dispatched_evaluation import (
    FED_AHEAD,
    DispatchedEvaluation,
    as_int64,
)
from kdist.distribute.loops.dispatches import Dispatches, accelerator_of
from kdist.distribute.loops.evaluation import SUMS, EpochLogs, restored
from kdist.distribute.loops.inner_loop import NextBatches, OnProgress, all_at_once
from kdist.distribute.loops.resident_data import ResidentData
from kdist.distribute.loops.supply import Supply
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.servers.server_step import ServerStep
from kdist.distribute.servers.server_store import WINDOW
from kdist.distribute.shares import WorkerShare
from kdist.distribute.step.signatures import rows_per_share

POLL_S = 0.005
# How often the chief looks whether dispatches have ended: seldom while they have long to go, as
# every look costs processor time. And how often it asks the first server.
NAP_S, LONG_NAP_S, NAP_SHARE = 0.001, 0.025, 0.02
LOOK_EVERY_S = 0.25
PROGRESS_EVERY_S = 0.5


class CoordinatorLoop:
    """Drives workers and servers from the chief."""

    def __init__(
        self,
        strategy: tf.distribute.ParameterServerStrategy,
        structure: ModelStructure,
        layout: BucketLayout,
        *,
        source: BatchSource,
        num_workers: int,
        num_shares: int = 1,
        max_staleness: int | None = None,
        jit_compile: bool = False,
        check_cluster: Callable[[], None] = lambda: None,
    ):
        """Create the store on the servers and trace the compute, outside the strategy.

        Args:
            strategy: Connected to its cluster.
            structure: The probed structure of the model.
            layout: Buckets dealt to the parameter servers.
            source: The training data.
            num_workers: Workers that train.
            num_shares: Shares of a batch, each computed by one worker.
            max_staleness: Most updates that may have been applied since a step began to read;
                what is older is computed again. `None` for any.
            jit_compile: Whether XLA compiles the compute.
            check_cluster: Called while waiting; raises when waiting has no sense any more.
        """
        self.num_workers = num_workers
        self.is_settled = False
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._check_cluster = check_cluster
        self._source = source
        self._step = ServerStep(
            structure,
            layout,
            batch_spec=source.element_spec,
            num_rows=rows_per_share(source.rows_per_batch, num_shares),
            jit_compile=jit_compile,
            compute_device=accelerator_of(num_workers),
            max_staleness=max_staleness,
        )
        self.store = self._step.store
        self.logs = EpochLogs(structure, self._step.aux)
        self._data = ResidentData(self._coordinator, structure, self.store)
        self._dispatches = Dispatches(self._step, self._data, source)
        self._fed_dispatch_fn: Any = None
        self._fed: Any = None
        self._dispatch_fns: dict[int, Any] = {}
        self._supply = Supply(num_workers)
        self._waiting_since_s = 0.0
        self._evaluation = DispatchedEvaluation(
            self._coordinator, self._step, self._data, num_workers=num_workers
        )

    # training

    def train(
        self, first_step: int, num_steps: int, *, steps_per_call: int, on_progress: OnProgress
    ) -> int:
        """Run steps on whichever worker is free; see `InnerLoop.train`.

        All steps are applied when this returns.
        """
        done = 0
        while done < num_steps:
            size = min(num_steps - done, WINDOW // 2)
            progress = functools.partial(_progress_of, on_progress, done)
            if self._data.holds(self._source):
                done += self._run_ids(first_step + done, size, steps_per_call, progress)
            else:
                self._schedule_batches(first_step + done, size)
                self._wait(lambda progress=progress: progress(0))
                done += size
            if on_progress(done):
                break
        return done

    def _run_ids(
        self, first_step: int, num_steps: int, steps_per_call: int, on_progress: OnProgress
    ) -> int:
        """Run steps, or the first ones of them if `on_progress` asks to stop; return how many."""
        applied_before, begun_s = int(self.store.num_applied.numpy()), time.monotonic()
        self._waiting_since_s = begun_s
        next_progress, num_scheduled, num_applied = begun_s + PROGRESS_EVERY_S, 0, 0
        while num_scheduled < num_steps:
            elapsed_s = time.monotonic() - begun_s
            wanted = self._supply.wanted(num_applied, elapsed_s, steps_per_call)
            end = min(num_steps, max(num_scheduled, wanted))
            self._schedule_ids(first_step + num_scheduled, end - num_scheduled, steps_per_call)
            num_scheduled = end
            if num_scheduled == num_steps:
                break
            self._nap(LOOK_EVERY_S)
            num_applied = int(self.store.num_applied.numpy()) - applied_before
            if time.monotonic() >= next_progress:
                next_progress = time.monotonic() + PROGRESS_EVERY_S
                if on_progress(num_applied):
                    break
        self._wait(lambda: on_progress(num_applied))
        return num_scheduled

    def _schedule_ids(self, first_step: int, num_steps: int, steps_per_call: int) -> None:
        iterator = self._data.iterator(self._source)
        for offset in range(0, num_steps, steps_per_call):
            count = min(steps_per_call, num_steps - offset)
            if count not in self._dispatch_fns:
                self._dispatch_fns[count] = self._dispatches.of_ids(count)
            self._coordinator.schedule(
                self._dispatch_fns[count], args=(iterator, *as_int64(first_step + offset))
            )

    def _schedule_batches(self, first_step: int, num_steps: int) -> None:
        """Read on the chief and send each batch along with its step."""
        if self._fed_dispatch_fn is None:
            self._fed_dispatch_fn = self._dispatches.of_sent()
        if self._fed is None:
            self._fed = iter(self._source.dataset(first_step, WorkerShare(), repeat=True))
        iterator = self._data.iterator(None)
        applied_before = int(self.store.num_applied.numpy())
        for index in range(num_steps):
            self._wait_for_room(index, applied_before)
            try:
                batch = next(self._fed)
            except Exception:
                self._wait(lambda: False)
                self.is_settled = True
                raise
            self._coordinator.schedule(
                self._fed_dispatch_fn, args=(iterator, *as_int64(first_step + index), batch)
            )

    def _wait_for_room(self, num_scheduled: int, applied_before: int) -> None:
        limit = FED_AHEAD * self.num_workers
        while num_scheduled - (int(self.store.num_applied.numpy()) - applied_before) >= limit:
            self._check_cluster()
            if self._coordinator.done():
                return
            time.sleep(POLL_S)

    def _wait(self, on_progress: Callable[[], bool]) -> None:
        self._waiting_since_s = time.monotonic()
        next_progress = self._waiting_since_s + PROGRESS_EVERY_S
        while not self._coordinator.done():
            self._nap(LONG_NAP_S)
            self._remind()
            if time.monotonic() >= next_progress:
                on_progress()
                next_progress = time.monotonic() + PROGRESS_EVERY_S
        self._coordinator.join()

    def _nap(self, seconds: float) -> None:
        """Sleep, until all dispatches have ended at most: that is seen without asking a server."""
        end_s = time.monotonic() + seconds
        while True:
            waited_s = time.monotonic() - self._waiting_since_s
            time.sleep(min(max(NAP_S, waited_s * NAP_SHARE), LONG_NAP_S, seconds))
            self._check_cluster()
            if time.monotonic() >= end_s or self._coordinator.done():
                return

    def _remind(self) -> None:
        """Do now and then what those who are waited for may need: nothing, here."""

    # logs and evaluation

    def read_logs(self) -> np.ndarray:
        """Return the sums that the first server holds, over all workers."""
        return self.store.sums.numpy()

    def reset_logs(self) -> None:
        """Forget the sums; nothing may be under way."""
        self.store.sums.assign(tf.zeros_like(self.store.sums))

    def capture_sums(self) -> dict[str, np.ndarray]:
        """Return the sums since the last reset; nothing may be under way."""
        return {SUMS: self.read_logs()}

    def restore_sums(self, sums: Mapping[str, np.ndarray]) -> bool:
        """Go on from captured sums; see `InnerLoop.restore_sums`."""
        return restored(self.store.sums, sums)

    def evaluate(
        self,
        source: BatchSource,
        num_batches: int | None,
        next_batches: NextBatches = all_at_once,
    ) -> np.ndarray:
        """Let the workers evaluate whole batches, each counted once; see `InnerLoop.evaluate`."""
        return self._evaluation.run(
            source, num_batches, next_batches, lambda: self._wait(lambda: False)
        )


def _progress_of(on_progress: OnProgress, num_before: int, num_done: int) -> bool:
    return on_progress(num_before + num_done)
