"""The inner loop of synchronous between-graph parameter servers: all workers take turns.

The chief opens a stretch of steps; every worker runs its replica's turns in one call of the
runtime. The servers decide which shares make an update. Replicas whose worker is gone are stood in
for by the chief, on a thread each, so that no step waits for a share that nobody computes.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kdist.distribute.between_graph.desk import TURNS, Opened
from kdist.distribute.between_graph.loop import PROGRESS_EVERY_S, BetweenGraphLoop
from kdist.distribute.loops.inner_loop import OnProgress
from kdist.distribute.values import to_numpy

_POLL_S = 0.02
# How long a step may take before replicas that wait are woken to ask again.
WAKE_AFTER_S = 0.3
# How long a step may take before the chief takes the turns of all others as well: servers take each
# share once, whoever computes it.
STAND_IN_AFTER_S = 20.0


class AggregatingClientLoop(BetweenGraphLoop):
    """The chief's loop, and what followers do; see `BetweenGraphLoop`."""

    def train(
        self, first_step: int, num_steps: int, *, steps_per_call: int, on_progress: OnProgress
    ) -> int:
        """Run steps on all workers; see `InnerLoop.train`."""
        del steps_per_call  # A call runs a whole stretch.
        self._wait_for_workers()
        self._publish_frozen()
        at_once = self._worker.steps_at_once or num_steps
        done = 0
        while done < num_steps:
            size = min(at_once, num_steps - done)
            self._run_stretch(first_step + done, size, lambda start=done: on_progress(start))
            done += size
            if on_progress(done):
                break
        return done

    def _run_stretch(self, first_step: int, num_steps: int, on_progress: Callable[[], Any]) -> None:
        worker, turns = self._worker, self._worker.turns
        assert turns is not None
        stretch = turns.open(first_step, num_steps)
        version = self._opened.version
        self._opened = Opened(TURNS, first_step, first_step, base=stretch, version=version)
        worker.refresh(version)
        worker.open_desk(self._opened)
        replicas = _Replicas(
            lambda replica: worker.turns_of(replica, stretch, first_step), turns.num_replicas
        )
        replicas.start(worker.index)
        issued, since_s, woken_s = -1, time.monotonic(), time.monotonic()
        next_progress = since_s + PROGRESS_EVERY_S
        while True:
            dealing = turns.read()
            if int(dealing.step) >= first_step + num_steps:
                break
            now = time.monotonic()
            if int(dealing.issued) != issued:
                issued, since_s, woken_s = int(dealing.issued), now, now
            elif now - woken_s > WAKE_AFTER_S:
                woken_s = now
                turns.wake()
                replicas.start(*self._missing(all_of_them=now - since_s > STAND_IN_AFTER_S))
            self._check_cluster()
            replicas.check()
            if now >= next_progress:
                on_progress()
                next_progress = now + PROGRESS_EVERY_S
            replicas.wait_for_one(_POLL_S)
        turns.finish()
        turns.wake()
        replicas.join(turns.wake)

    def _missing(self, *, all_of_them: bool) -> list[int]:
        """Return the workers that take no turns."""
        num_workers = self._worker.desk.num_workers
        if all_of_them:
            return list(range(num_workers))
        num_losses = np.bincount(np.asarray(self._losses(), int), minlength=num_workers)
        return np.flatnonzero(to_numpy(self._worker.desk.arrived) <= num_losses).tolist()


class _Replicas:
    """Replicas that this task runs, on a thread each."""

    def __init__(self, make: Callable[[int], Callable[[], Any]], num_replicas: int):
        """Run none yet; `make` returns what takes a replica's turns."""
        self._make = make
        self._num_replicas = num_replicas
        self._threads: dict[int, threading.Thread] = {}
        self._errors: list[BaseException] = []

    def start(self, *replicas: int) -> None:
        """Run replicas, unless they run here already."""
        for replica in replicas:
            if replica in self._threads or replica >= self._num_replicas:
                continue
            thread = threading.Thread(target=self._run, args=[self._make(replica)], daemon=True)
            self._threads[replica] = thread
            thread.start()

    def wait_for_one(self, timeout_s: float) -> None:
        """Wait until one of the replicas here has ended, which it does with the stretch."""
        alive = [thread for thread in self._threads.values() if thread.is_alive()]
        if alive:
            alive[0].join(timeout_s)
        else:
            time.sleep(_POLL_S / 10)

    def check(self) -> None:
        """Raise what a replica has raised."""
        if self._errors:
            raise self._errors[0]

    def join(self, wake: Callable[[], None]) -> None:
        """Wait for the ends of all; the stretch is over."""
        for thread in self._threads.values():
            while thread.is_alive():
                thread.join(WAKE_AFTER_S)
                self.check()
                wake()
        self.check()

    def _run(self, turns: Callable[[], Any]) -> None:
        try:
            turns()
        except BaseException as error:
            self._errors.append(error)
