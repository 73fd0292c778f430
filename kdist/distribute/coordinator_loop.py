"""The inner loop of asynchronous parameter servers: the chief deals out steps, workers push.

In-graph replication (`tf.distribute.coordinator.ClusterCoordinator`). A dispatch carries step ids;
a step's rows are a function of its id, and servers skip ids that they have applied. So a dispatch
that the coordinator runs again after a worker was lost neither loses nor repeats an update.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.data.source import BatchSource
from kdist.distribute.dispatched_evaluation import (
    FED_AHEAD,
    DispatchedEvaluation,
    as_int64,
    gathered,
)
from kdist.distribute.evaluation import SUMS, EpochLogs, restored
from kdist.distribute.inner_loop import NextBatches, OnProgress, all_at_once
from kdist.distribute.layout import BucketLayout
from kdist.distribute.resident_data import ResidentData
from kdist.distribute.server_step import ServerStep
from kdist.distribute.server_store import WINDOW
from kdist.distribute.shares import WorkerShare
from kdist.distribute.structure import ModelStructure

POLL_S = 0.005
PROGRESS_EVERY_S = 0.5
UNROLLED_STEPS = 10

_PLAIN = tf.autograph.experimental.do_not_convert


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
            jit_compile=jit_compile,
            compute_device=_accelerator_of(num_workers),
            max_staleness=max_staleness,
        )
        self.store = self._step.store
        self.logs = EpochLogs(structure, self._step.aux)
        self._data = ResidentData(self._coordinator, structure, self.store)
        self._fed_dispatch_fn: Any = None
        self._fed: Any = None
        self._dispatch_fns: dict[int, Any] = {}
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
            if self._data.holds(self._source):
                self._schedule_ids(first_step + done, size, steps_per_call)
            else:
                self._schedule_batches(first_step + done, size)
            self._wait(lambda start=done: on_progress(start))
            done += size
            if on_progress(done):
                break
        return done

    def _schedule_ids(self, first_step: int, num_steps: int, steps_per_call: int) -> None:
        iterator = self._data.iterator(self._source)
        for offset in range(0, num_steps, steps_per_call):
            count = min(steps_per_call, num_steps - offset)
            if count not in self._dispatch_fns:
                self._dispatch_fns[count] = self._trace_dispatch(count)
            self._coordinator.schedule(
                self._dispatch_fns[count], args=(iterator, *as_int64(first_step + offset))
            )

    def _schedule_batches(self, first_step: int, num_steps: int) -> None:
        """Read on the chief and send each batch along with its step."""
        if self._fed_dispatch_fn is None:
            self._fed_dispatch_fn = self._trace_fed_dispatch()
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
        next_progress = time.monotonic() + PROGRESS_EVERY_S
        while not self._coordinator.done():
            self._check_cluster()
            self._remind()
            time.sleep(POLL_S)
            if time.monotonic() >= next_progress:
                on_progress()
                next_progress = time.monotonic() + PROGRESS_EVERY_S
        self._coordinator.join()

    def _remind(self) -> None:
        """Do now and then what those who are waited for may need: nothing, here."""

    def _trace_dispatch(self, num_steps: int) -> Any:
        """Return a function that runs `num_steps` steps.

        They are unrolled in blocks: a graph loop that spans devices costs each of them messages in
        every turn (measured: 4.3 against 5.7 ms of CPU a step, in blocks of ten).
        """
        num_blocks = 0 if num_steps < 2 * UNROLLED_STEPS else num_steps // UNROLLED_STEPS
        rest = num_steps - num_blocks * UNROLLED_STEPS

        @tf.function
        def dispatch(iterator: Any, first_step: tf.Tensor) -> tf.Tensor:
            arrays, frozen = self._data.open(iterator)
            worker = worker_index()
            if num_blocks > 0:
                for block in tf.range(num_blocks):
                    start = first_step + tf.cast(block, tf.int64) * UNROLLED_STEPS
                    self._run_steps(start, UNROLLED_STEPS, arrays, frozen, worker)
            last = first_step + num_blocks * UNROLLED_STEPS
            self._run_steps(last, rest, arrays, frozen, worker)
            return tf.constant(0)

        return dispatch

    @_PLAIN
    def _run_steps(
        self, first_step: tf.Tensor, num_steps: int, arrays: Any, frozen: Any, worker: Any
    ) -> None:
        for index in range(num_steps):
            step_id = first_step + index
            batch = gathered(self._source, arrays, step_id)
            self._step.train(step_id, batch, frozen, worker=worker)

    def _trace_fed_dispatch(self) -> Any:
        @tf.function
        def dispatch(iterator: Any, step_id: tf.Tensor, batch: Any) -> tf.Tensor:
            frozen = self._data.open(iterator)[1]
            self._step.train(step_id, batch, frozen, worker=worker_index())
            return tf.constant(0)

        return dispatch

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


def worker_index() -> tf.Tensor:
    """Return the index of the worker that a dispatch runs on, an int64 scalar."""
    index: Any = tf.distribute.coordinator.experimental_get_current_worker_index()
    return tf.cast(index, tf.int64)


def _accelerator_of(num_workers: int) -> str | None:
    """Return the device that every worker computes on, if each of them shows an accelerator."""
    devices = [tf.DeviceSpec.from_string(d.name) for d in tf.config.list_logical_devices("GPU")]
    tasks = {device.task for device in devices if device.job == "worker"}
    return "/device:GPU:0" if len(tasks) == num_workers else None
