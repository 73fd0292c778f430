"""SIGTERM and SIGINT as a request to stop: asked between steps, so that weights stay whole."""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}
# Who signals every process of a run signals its launcher, too, which passes it on: that is one.
_ECHO_S = 1.0


class StoppedEarly(BaseException):
    """A signal came before training began, when there is nothing to save yet."""

    def __init__(self, name: str):
        """Carry the signal's name and the exit code that reports it."""
        super().__init__(f"{name}: stopped before training began.")
        self.exit_code = EXIT_CODES[name]


class StopSignals:
    """Remembers the first signal once training has begun; a second one ends the process at once.

    A task that only hosts a server asks the chief, and waits until it is done, who may need the
    server to save; or until the grace period is over. Under a launcher, that decides instead.
    """

    def __init__(
        self,
        *,
        is_host: bool,
        is_local: bool,
        grace_s: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Prepare; `install` takes the signals.

        Args:
            is_host: Whether this task only hosts a TensorFlow server.
            is_local: Whether a launcher passes signals on, and decides when a host ends.
            grace_s: How long a host waits for the chief after a signal.
            clock: Seconds.
        """
        self.reason: str | None = None
        self._is_host = is_host
        self._is_local = is_local
        self._grace_s = grace_s
        self._clock = clock
        self._at_s = 0.0
        self._has_begun = False
        self._tell: Callable[[str], None] = lambda name: None

    def install(self) -> None:
        """Take the signals, in the main thread; again after TensorFlow took SIGTERM for itself."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def begin(self, tell: Callable[[str], None] = lambda name: None) -> None:
        """From now on a signal asks to stop between two steps, or a host to wait for the chief.

        Args:
            tell: Told the name of the first signal, in the signal's handler.
        """
        self._has_begun = True
        self._tell = tell

    def __call__(self) -> str | None:
        """Return the name of the signal that asked to stop, or `None`."""
        return self.reason

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        name = signal.Signals(number).name
        if self.reason is not None:
            is_echo = self._is_local and self._clock() - self._at_s < _ECHO_S
            if not is_echo:
                os._exit(EXIT_CODES[name])
            return
        self.reason, self._at_s = name, self._clock()
        if not self._has_begun:
            raise StoppedEarly(name)
        self._tell(name)
        if self._is_host and not self._is_local:
            timer = threading.Timer(self._grace_s, os._exit, [EXIT_CODES[name]])
            timer.daemon = True
            timer.start()
