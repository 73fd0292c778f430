"""Signals as something to read, so that one loop can wait for them and for everything else."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

FORWARDED = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal came while nothing could be waited for."""

    def __init__(self, number: int) -> None:
        """Carry the signal's number."""
        super().__init__(number)
        self.number = number


class SignalInbox:
    """Collects SIGINT and SIGTERM while it is open."""

    def __init__(self) -> None:
        """Nothing is installed before `opened`."""
        self._reader = -1
        self._writer = -1
        self._is_raising = False
        self._early: list[int] = []
        self._lock = threading.Lock()

    @property
    def descriptor(self) -> int:
        """Becomes readable when a signal has come."""
        return self._reader

    @contextlib.contextmanager
    def opened(self) -> Iterator["SignalInbox"]:
        """Take the signals over, and give them back afterwards.

        Outside the main thread nothing can be taken over: signals stay with whoever has them,
        and who passes them on.
        """
        with self._lock:
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._reader, False)
            os.set_blocking(self._writer, False)
            while self._early:
                self._put(self._early.pop(0))
        previous = {}
        if threading.current_thread() is threading.main_thread():
            previous = {number: signal.signal(number, self._take) for number in FORWARDED}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            with self._lock:
                os.close(self._reader)
                os.close(self._writer)
                self._reader = self._writer = -1

    def send(self, number: int) -> None:
        """Pass on a signal that another thread has taken; before `opened`, it waits for that."""
        with self._lock:
            if self._writer < 0:
                self._early.append(number)
            else:
                self._put(number)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Raise `Interrupted` at once, where code waits for something that may never come."""
        self._is_raising = True
        try:
            yield
        finally:
            self._is_raising = False

    def take(self) -> list[int]:
        """Return the signals that have come since the last call."""
        with contextlib.suppress(BlockingIOError):
            return list(os.read(self._reader, 64))
        return []

    def _take(self, number: int, _frame: object) -> None:
        if self._is_raising:
            raise Interrupted(number)
        self._put(number)

    def _put(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.write(self._writer, bytes([number]))
