"""Keeps the slots of this machine busy until the search is over, or a signal comes."""

import queue
import signal
from collections.abc import Callable, Sequence

from kdist.errors import TaskTimeoutError
from kdist.tuning.desk import Desk
from kdist.tuning.slot import Slot

_POLL_S = 0.2  # How late an epoch may be noticed: runs tell about it in a file.


class Stop:
    """SIGINT and SIGTERM, remembered; `wake` lets whoever waits look."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Prepare; `install` takes the signals."""
        self.numbers: list[int] = []
        self._wake = wake

    def install(self) -> None:
        """Take the signals, in the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    @property
    def first(self) -> int | None:
        """The signal that asked to stop, or `None`."""
        return self.numbers[0] if self.numbers else None

    def _take(self, number: int, _frame: object) -> None:
        self.numbers.append(number)
        self._wake()


class Wake:
    """Lets one thread wait until another, or a signal's handler, has something for it."""

    def __init__(self) -> None:
        """Nothing has come."""
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __call__(self) -> None:
        """Wake whoever waits, or will wait next."""
        self._queue.put(None)

    def wait(self, timeout_s: float) -> None:
        """Wait until woken, at most so long."""
        try:
            self._queue.get(timeout=timeout_s)
            while True:
                self._queue.get_nowait()
        except queue.Empty:
            return


def run_trials(
    slots: Sequence[Slot],
    desk: Desk,
    *,
    tuner: str,
    wake: Wake,
    stop: Stop,
    stop_grace_s: float,
    on_tick: Callable[[], None] = lambda: None,
) -> None:
    """Run trials until no further one comes, or a signal asks to stop.

    Args:
        slots: Where trials run, side by side.
        desk: Hands them out.
        tuner: Who asks for them.
        wake: Woken by runs that end, and by signals.
        stop: The signals.
        stop_grace_s: How long runs may take to end after a signal; then they are killed.
        on_tick: Called every now and then, for whoever shows what is going on.

    Raises:
        KdistError: If the search cannot go on; runs have ended then.
    """
    try:
        while stop.first is None:
            for slot in slots:
                slot.look()
            for slot in slots:
                if slot.is_idle and (assignment := desk.next_trial(tuner)) is not None:
                    slot.begin(assignment)
            on_tick()
            if desk.is_over and all(slot.is_idle for slot in slots):
                return
            wake.wait(_POLL_S)
    finally:
        _end_runs(slots, stop, stop_grace_s)
    for slot in slots:
        slot.look()


def _end_runs(slots: Sequence[Slot], stop: Stop, stop_grace_s: float) -> None:
    """Let runs that still go on save and end; kill those that do not."""
    busy = [slot for slot in slots if not slot.is_idle]
    for slot in busy:
        slot.stop(stop.first or signal.SIGTERM)
    waited_s = 0.0
    while not all(slot.is_over_within(_POLL_S) for slot in busy) and waited_s < stop_grace_s:
        waited_s += _POLL_S * len(busy)
        if len(stop.numbers) > 1:
            break
    for slot in busy:
        if not slot.is_over_within(0):
            slot.stop(signal.SIGTERM)
    for slot in busy:
        if not slot.is_over_within(stop_grace_s):
            raise TaskTimeoutError("Gave up waiting for the run of a trial, which was killed.")
