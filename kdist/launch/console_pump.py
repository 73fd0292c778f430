"""What tasks print: into logs/, and the chief's to the terminal without TensorFlow's noise."""

import codecs
import os
import re
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from kdist.cluster.task import Task

_MAX_BUFFERED_BYTES = 4 << 20
_MAX_TAIL_BYTES = 64 << 10
_NOISE = re.compile(
    r"[IWE]\d{4} [\d:.]+ .*\]"
    r"|20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] .*\]"
    r"|WARNING: All log messages before absl::InitializeLog"
    r"|To enable the following instructions:.*rebuild TensorFlow"
    # The further lines of a message about a peer that has left.
    r"|Additional GRPC error information from remote target /job:"
    r"|:UNKNOWN:Error received from peer "
    r"|This could happen if the remote target has been disconnected"
)
_NOISE_STARTS = (
    *("20", "WARNING: All log", "To enable the following", *"IWE"),
    *("Additional GRPC error", ":UNKNOWN:Error received", "This could happen if the remote"),
)
_LINE_ENDS = re.compile(r"(?<=[\r\n])")
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f]")


def is_noise(line: str) -> bool:
    """Whether a line is one of TensorFlow's start-up messages (fatal ones are not)."""
    return _NOISE.match(line) is not None


class NoiseFilter:
    """Passes text on as it comes, progress bars included, and drops noise lines."""

    def __init__(self, write: Callable[[str], None], *, is_dropping: bool = True) -> None:
        """Write what passes to `write`; everything, where noise is welcome."""
        self._write = write
        self._is_dropping = is_dropping
        self._held = ""  # The start of a line that may turn out to be noise.
        self._is_mid_line = False

    def feed(self, text: str) -> None:
        """Take the next piece of output, cut anywhere."""
        if not self._is_dropping:
            self._write(text)
            return
        passed = []
        *lines, rest = _LINE_ENDS.split(self._held + text)
        self._held = ""
        for line in lines:
            if self._is_mid_line or not is_noise(line):
                passed.append(line)
            self._is_mid_line = False
        if not self._is_mid_line and _may_become_noise(rest):
            self._held = rest
        elif rest:
            passed.append(rest)
            self._is_mid_line = True
        if passed:
            self._write("".join(passed))

    def close(self) -> None:
        """Pass on what was held back."""
        if self._held and not is_noise(self._held):
            self._write(self._held)
        self._held = ""


def _may_become_noise(line: str) -> bool:
    return bool(line) and any(
        line.startswith(start) or start.startswith(line) for start in _NOISE_STARTS
    )


class TerminalEcho:
    """Writes to the user's terminal or pipe; one that is closed ends nothing."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`; to stdout, unless given."""
        self._stream = stream or sys.stdout
        self._is_cursor_hidden = False
        self._is_mid_line = False
        self.error: OSError | None = None  # Why it takes no more.

    def write(self, text: str) -> None:
        """Write at once."""
        if self.error is not None or not text:
            return
        shown, hidden = text.rfind("\x1b[?25h"), text.rfind("\x1b[?25l")
        if max(shown, hidden) >= 0:
            self._is_cursor_hidden = hidden > shown
        self._is_mid_line = not text.endswith("\n")
        try:
            self._stream.write(text)
            self._stream.flush()
        except UnicodeEncodeError:
            encoding = getattr(self._stream, "encoding", None) or "ascii"
            self.write(text.encode(encoding, "replace").decode(encoding))
        except OSError as error:
            self.error = error
            _forget_broken_pipe(self._stream)

    def tidy(self) -> None:
        """Leave the cursor visible and at the start of a line, whatever state the chief left."""
        if self._is_cursor_hidden:
            self.write("\x1b[?25h\n")
        elif self._is_mid_line:
            self.write("\n")


def _forget_broken_pipe(stream: TextIO) -> None:
    """Keep the interpreter from complaining at its end about output that nobody reads."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass


class TaskOutput:
    """Everything one task printed: buffered until its log can be opened, then written there."""

    def __init__(self, task: Task, echo: NoiseFilter | None = None) -> None:
        """Keep the output of `task`, and pass it to `echo` as well if given."""
        self.task = task
        self._echo = echo
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._buffered: deque[bytes] = deque()
        self._num_buffered_bytes = 0
        self._tail = b""
        self._log: int | None = None
        self.log_path: Path | None = None
        self.log_error: str | None = None

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        self.note(data)
        if self._echo is not None:
            self._echo.feed(self._decoder.decode(data))

    def note(self, data: bytes) -> None:
        """Take output that is only for the log."""
        self._tail = (self._tail + data)[-_MAX_TAIL_BYTES:]
        if self._log is not None:
            self._write(data)
        elif self.log_error is None:
            self._buffered.append(data)
            self._num_buffered_bytes += len(data)
            while self._num_buffered_bytes > _MAX_BUFFERED_BYTES and len(self._buffered) > 1:
                self._num_buffered_bytes -= len(self._buffered.popleft())

    def open_log(self, folder: Path) -> None:
        """Write to `<folder>/<task>.log` from now on, and what was kept so far."""
        self.log_path = folder / f"{self.task}.log"
        try:
            folder.mkdir(exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._log = os.open(self.log_path, flags, 0o666)
        except OSError as error:
            self.log_error = f"{self.log_path} cannot be written: {error.strerror}."
        for data in self._buffered:
            self._write(data)
        self._buffered.clear()

    def tail(self, num_lines: int) -> list[str]:
        """Return the last lines as plain text, without noise and terminal control codes."""
        lines = self._tail.decode("utf-8", "replace").replace("\r", "\n").split("\n")
        plain = (_CONTROL.sub("", line).rstrip() for line in lines)
        return [line for line in plain if line and not is_noise(line)][-num_lines:]

    def close(self) -> None:
        """Pass on the rest and close the log; may be called again."""
        if self._echo is not None:
            self._echo.close()
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _write(self, data: bytes) -> None:
        if self._log is None:
            return
        try:
            while data:
                data = data[os.write(self._log, data) :]
        except OSError as error:
            self.log_error = f"{self.log_path} cannot be written: {error.strerror}."
            os.close(self._log)
            self._log = None
