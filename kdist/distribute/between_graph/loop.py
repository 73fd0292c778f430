"""The inner loop of between-graph parameter servers: the chief opens steps, all workers take them.

The chief runs the outer loop and computes like everybody else. The others follow: they take
tickets until the desk closes. Nobody waits for anybody within a stretch of steps.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from kdist.distribute.between_graph.desk import EVALUATE, TRAIN, Opened, Ticket
from kdist.distribute.between_graph.following import follow
from kdist.distribute.between_graph.pauses import pause_s
from kdist.distribute.between_graph.worker import StepWorker
from kdist.distribute.data.source import BatchSource
from kdist.distribute.loops.evaluation import SUMS, EpochLogs, restored
from kdist.distribute.loops.inner_loop import NextBatches, OnProgress, all_at_once
from kdist.distribute.servers.server_store import WINDOW
from kdist.distribute.shares import WorkerShare
from kdist.distribute.store.replicated_store import fingerprint
from kdist.distribute.values import to_numpy, write
from kdist.errors import TaskTimeoutError

_START_POLL_S = 0.01
PROGRESS_EVERY_S = 0.5
# Without progress for so long, or for so many of its own tickets' time, the chief computes what is
# missing itself: servers take every id once, so that nothing can go wrong but some work be wasted.
PATIENCE_S = 10.0
PATIENCE_TICKETS = 10


class BetweenGraphLoop:
    """The chief's loop; see `InnerLoop`."""

    is_settled = False

    def __init__(
        self,
        worker: StepWorker,
        *,
        check_cluster: Callable[[], None] = lambda: None,
        losses: Callable[[], Sequence[int]] = tuple,
        start_timeout_s: float = 120.0,
        names: Callable[[int], str] = lambda index: f"worker-{index}",
    ):
        """Hold the parts; the chief calls `begin`, and any other task `follow`.

        Args:
            worker: This task's own worker.
            check_cluster: Called while waiting; raises when waiting has no sense any more.
            losses: Returns the indices of workers that were lost so far, once for each loss.
            start_timeout_s: How long to wait for the other workers before the first step.
            names: Returns the name of the worker with an index.
        """
        self._worker = worker
        self._check_cluster = check_cluster
        self._losses = losses
        self._start_timeout_s = start_timeout_s
        self._names = names
        self.store = worker.store
        self.logs = EpochLogs(worker.graph.structure, worker.graph.aux)
        self._opened = Opened()
        self._has_begun = False
        self._num_evaluated = 0
        self._ticket_s = 0.0
        self._model_reads = self.store.num_model_reads
        self._frozen = fingerprint(worker.graph.structure.frozen)

    def begin(self, notes: str) -> None:
        """Open the session and initialize the servers; for the chief, before anything else.

        Args:
            notes: What followers compare themselves with.
        """
        self._worker.open(self._start_timeout_s)
        self._worker.initialize(notes)
        self._worker.arrive()
        self._model_reads = self.store.num_model_reads

    # training

    def train(
        self, first_step: int, num_steps: int, *, steps_per_call: int, on_progress: OnProgress
    ) -> int:
        """Run steps on all workers; all are applied when this returns. See `InnerLoop.train`."""
        del steps_per_call  # Fixed when the graph was built, for all workers alike.
        self._wait_for_workers()
        self._publish_frozen()
        done = 0
        while done < num_steps:
            size = min(num_steps - done, WINDOW // 2)
            first = first_step + done
            done += self._compute(
                Opened(TRAIN, first, first + size, version=self._opened.version),
                lambda start=done: on_progress(start),
            )
            if on_progress(done):
                break
        return done

    def _wait_for_workers(self) -> None:
        """Wait for the workers that are not lost, before the first step."""
        if self._has_begun:
            return
        self._has_begun = True
        end_s = time.monotonic() + self._start_timeout_s
        while True:
            arrived = np.flatnonzero(to_numpy(self._worker.desk.arrived))
            here = {*arrived.tolist(), *self._losses()}
            missing = [i for i in range(self._worker.desk.num_workers) if i not in here]
            if not missing:
                return
            self._check_cluster()
            if time.monotonic() > end_s:
                names = ", ".join(self._names(index) for index in missing)
                raise TaskTimeoutError(
                    f"Gave up after {self._start_timeout_s:g} s (cluster.start_timeout_s) waiting "
                    f"for {names} to build the model. See the logs."
                )
            time.sleep(_START_POLL_S)

    def _publish_frozen(self) -> None:
        """Give all workers what a callback wrote into frozen variables."""
        if self._model_reads == self.store.num_model_reads:
            return
        self._model_reads = self.store.num_model_reads
        current = fingerprint(self._worker.graph.structure.frozen)
        if current != self._frozen:
            self._frozen = current
            self._worker.write_frozen()
            self._opened = self._opened._replace(version=self._opened.version + 1)

    def _compute(self, opened: Opened, on_progress: Callable[[], bool] = lambda: False) -> int:
        """Open a range of ids, take part in it, and wait until all of it is done.

        If `on_progress` asks to stop, it ends behind the last id taken. Returns how many ids were.
        """
        self._opened = opened
        self._worker.open_desk(opened)
        next_progress = time.monotonic() + PROGRESS_EVERY_S
        while (ticket := self._worker.take()).num_ids:
            begun = time.monotonic()
            self._worker.run(ticket)
            self._check_cluster()
            now = time.monotonic()
            self._ticket_s = max(self._ticket_s * 0.9, now - begun)
            if now >= next_progress:
                if on_progress():
                    opened = opened._replace(end=self._worker.cut())
                next_progress = now + PROGRESS_EVERY_S
        self._settle(opened)
        return opened.end - opened.next_id

    def _settle(self, opened: Opened) -> None:
        """Wait for the tickets of others; compute again those of workers that were lost."""
        kind, base = opened.kind, opened.base
        num_lost, num_known, since_s = None, -1, time.monotonic()
        while True:
            known = self._worker.known(kind, base + opened.next_id, base + opened.end)
            if known.all():
                return
            if known.sum() > num_known:
                num_known, since_s = known.sum(), time.monotonic()
            patience_s = max(PATIENCE_S, PATIENCE_TICKETS * self._ticket_s)
            is_stuck = time.monotonic() - since_s > patience_s
            lost_now = len(self._losses())
            if is_stuck or (lost_now and lost_now != num_lost):
                num_lost, since_s = lost_now, time.monotonic()
                for offset in np.flatnonzero(~known):
                    one = opened.next_id + int(offset)
                    self._worker.run(self._redone(opened, one))
            self._check_cluster()
            time.sleep(pause_s(time.monotonic() - since_s))

    @staticmethod
    def _redone(opened: Opened, one: int) -> Ticket:
        return Ticket(opened.kind, one, one + 1, opened.base, opened.version, 0)

    # logs and evaluation

    def read_logs(self) -> np.ndarray:
        """Return the sums that the first server holds, over all workers."""
        return to_numpy(self.store.sums)

    def reset_logs(self) -> None:
        """Forget the sums; nothing may be under way."""
        write(self.store.sums, np.zeros([self._worker.graph.aux.num_logged], np.float64))

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
        """Let all workers evaluate whole batches, each counted once; see `InnerLoop.evaluate`."""
        limit = num_batches if source.batches_per_pass is None else source.batches_per_pass
        if limit is None:
            limit = sum(1 for _ in source.dataset(0, WorkerShare(), repeat=False))
        limit = limit if num_batches is None else min(limit, num_batches)
        self._publish_frozen()
        sums = self.store.evaluation_sums
        write(sums, np.zeros([self._worker.graph.aux.num_logged], np.float64))
        done, base = 0, self._num_evaluated
        while done < limit and (wanted := next_batches(done)):
            size = min(WINDOW // 2, max(wanted, self._worker.desk.num_workers))
            end = min(limit, done + size)
            self._compute(Opened(EVALUATE, done, end, base, self._opened.version))
            done = end
        self._num_evaluated += done
        return to_numpy(sums)

    def close(self) -> None:
        """Tell the followers that nothing will be opened any more; the servers may be gone."""
        with contextlib.suppress(tf.errors.OpError):
            self._worker.open_desk(Opened(is_closed=1))

    # the others

    def follow(
        self, chief: str, *, compare: Callable[[str], None], on_ready: Callable[[], None]
    ) -> int:
        """Compute tickets until the desk closes; return how many ids that were.

        For every task but the chief, in place of an outer loop.

        Args:
            chief: The task that is waited for, by name.
            compare: Called with the chief's notes; raises where this task does not fit.
            on_ready: Called when this task takes tickets.
        """
        return follow(
            self._worker,
            chief,
            compare=compare,
            on_ready=on_ready,
            check_cluster=self._check_cluster,
            start_timeout_s=self._start_timeout_s,
        )
