"""A text stream that can lose its reader without taking the run along."""

import io
from typing import TextIO


class TolerantStream(io.TextIOBase):
    """Passes text on to `target`; what cannot be written is dropped.

    Characters that the target's encoding lacks become question marks. After the reader went away
    (a broken pipe, a closed file, a full disk) nothing is written any more: training is worth more
    than its console.
    """

    def __init__(self, target: TextIO) -> None:
        """Write to `target`, which stays the caller's to close."""
        self._target = target
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Whether the reader went away."""
        return self._is_lost

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The target's encoding; rich draws with ASCII where it is not Unicode."""
        return getattr(self._target, "encoding", None) or "utf-8"

    def writable(self) -> bool:
        """Return `True`: writing never fails."""
        return True

    def write(self, text: str, /) -> int:
        """Write `text` as far as the target takes it; return its length."""
        if not self._is_lost:
            # A lone surrogate (a file name that is no UTF-8) cannot be encoded either.
            safe = text.encode(self.encoding, "replace").decode(self.encoding)
            try:
                self._target.write(safe)
            except BlockingIOError:
                pass  # A full non-blocking pipe: its reader is there, only slow.
            except (OSError, ValueError):  # ValueError: "I/O operation on closed file".
                self._is_lost = True
        return len(text)

    def flush(self) -> None:
        """Flush the target, if it is still there."""
        if not self._is_lost:
            try:
                self._target.flush()
            except BlockingIOError:
                pass
            except (OSError, ValueError):
                self._is_lost = True
