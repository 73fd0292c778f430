"""Runs the jobs of a sweep, one after the other or side by side, each in a thread of its own.

A thread only supervises the processes of its job: what a job does, its end included, reaches no
other. Signals come to the main thread, which passes them on to all jobs that run.
"""

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from kdist.cli.sweep.jobs import Outcome, SweepJob, failed
from kdist.launch import forkserver
from kdist.launch.signals import SignalInbox

_END_DEADLINE_S = 60.0

# Carries out a job that has been prepared; called in the job's thread.
CarryOut = Callable[[SignalInbox], Outcome]

# Python handles a signal that comes just as a thread begins to wait when it looks up next.
_LOOK_S = 0.5


@dataclass
class _Running:
    """A job that runs."""

    job: SweepJob
    carry_out: CarryOut
    is_over: Callable[[], None]
    inbox: SignalInbox = field(default_factory=SignalInbox)
    outcome: Outcome | None = None
    started_at_s: float = field(default_factory=time.monotonic)
    thread: threading.Thread = field(init=False)

    def start(self) -> None:
        """Begin; never raises for what the job does."""
        self.thread = threading.Thread(target=self._run, name=f"job-{self.job.number}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self.carry_out(self.inbox)
        except BaseException as error:
            self.outcome = failed(error, time.monotonic() - self.started_at_s)
        finally:
            self.is_over()


class JobPool:
    """Starts jobs in their order, as many at a time as there is room for."""

    def __init__(
        self,
        *,
        num_at_once: int,
        start: Callable[[SweepJob], CarryOut | Outcome | None],
        on_end: Callable[[SweepJob, Outcome], None],
        fail_fast: bool,
    ) -> None:
        """Remember what to do.

        Args:
            num_at_once: Jobs that may run at the same time.
            start: Prepares a job, in the main thread. Returns what carries it out, the outcome
                where nothing is left to do, or `None` where it must wait until another one ends.
            on_end: Told of every job's outcome as soon as it is known, in the main thread.
            fail_fast: Start no other job once one has failed.
        """
        self._num_at_once = num_at_once
        self._start = start
        self._on_end = on_end
        self._fail_fast = fail_fast
        self._running: list[_Running] = []
        self._reader, self._writer = -1, -1
        self.stop_signal: int | None = None
        self.has_failed = False

    @property
    def is_ending(self) -> bool:
        """Whether no other job may start."""
        return self.stop_signal is not None or (self._fail_fast and self.has_failed)

    def run(self, jobs: Sequence[SweepJob]) -> None:
        """Run jobs until all have ended, or none may start any more. May be called again."""
        left = deque(jobs)
        self._reader, self._writer = os.pipe()
        try:
            with SignalInbox().opened() as signals:
                while self._running or (left and not self.is_ending):
                    self._start_some(left, signals)
                    while self._running and not wait([signals.descriptor, self._reader], _LOOK_S):
                        pass
                    self._pass_on(signals)
                    self._collect()
        finally:
            self._end_all()
            os.close(self._reader)
            os.close(self._writer)

    def _start_some(self, left: deque[SweepJob], signals: SignalInbox) -> None:
        while left and len(self._running) < self._num_at_once:
            self._pass_on(signals)
            if self.is_ending:
                return
            try:
                begun = self._start(left[0])
            except Exception as error:
                begun = failed(error)
            if begun is None:
                return
            job = left.popleft()
            if isinstance(begun, Outcome):
                self._take(job, begun)
            else:
                self._running.append(_Running(job, begun, self._wake))
                self._running[-1].start()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._writer, b".")

    def _pass_on(self, signals: SignalInbox) -> None:
        for number in signals.take():
            for running in self._running:
                running.inbox.send(number)
            if self.stop_signal is not None:
                forkserver.kill()  # A job may wait for its import, deaf to everything else.
            self.stop_signal = self.stop_signal or number

    def _collect(self) -> None:
        ended = [running for running in self._running if running.outcome is not None]
        for running in ended:
            os.read(self._reader, 1)
            running.thread.join()
            self._running.remove(running)
            assert running.outcome is not None
            self._take(running.job, running.outcome)

    def _take(self, job: SweepJob, outcome: Outcome) -> None:
        self.has_failed = self.has_failed or outcome.status == "failed"
        self._on_end(job, outcome)

    def _end_all(self) -> None:
        """End what still runs, after an error of our own."""
        for running in self._running:
            running.inbox.send(signal.SIGTERM)
            running.inbox.send(signal.SIGTERM)
        deadline_s = time.monotonic() + _END_DEADLINE_S
        for running in self._running:
            running.thread.join(max(0.0, deadline_s - time.monotonic()))
        self._running.clear()
