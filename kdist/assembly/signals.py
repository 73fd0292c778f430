"""SIGTERM and SIGINT as a request to stop: asked between steps, so that weights stay whole."""

import os
import signal
from types import FrameType

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}


class StopSignals:
    """Remembers the first signal; a second one ends the process at once."""

    def __init__(self, *, ignores: bool = False):
        """Install the handlers, in the main thread.

        Args:
            ignores: Whether the launcher alone decides when this process ends.
        """
        self.reason: str | None = None
        self._ignores = ignores
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def __call__(self) -> str | None:
        """Return the name of the signal that asked to stop, or `None`."""
        return self.reason

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._ignores:
            return
        name = signal.Signals(number).name
        if self.reason is not None:
            os._exit(EXIT_CODES[name])
        self.reason = name
