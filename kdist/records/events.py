"""events.jsonl: what happened in a run and when, one JSON object a line.

The chief and the launcher append to the same file; each line is one write, so lines never mix.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kdist.errors import EnvironmentFault
from kdist.records.atomic import append_whole
from kdist.records.plain import to_plain


class EventLog:
    """Appends events to a file that other processes may append to as well."""

    def __init__(self, path: Path | str, *, clock: Callable[[], float] = time.time) -> None:
        """Remember where to write; nothing is opened before the first event."""
        self._path = Path(path)
        self._clock = clock

    def write(self, event: str, *, at_s: float | None = None, **fields: Any) -> None:
        """Append one event.

        Args:
            event: Its name, such as `task_started`.
            at_s: When it happened (seconds since the epoch); now, unless given.
            **fields: What else to say; `None` fields are left out.

        Raises:
            EnvironmentFault: If the file cannot be written.
        """
        line = format_event(event, self._clock() if at_s is None else at_s, fields)
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                append_whole(descriptor, line.encode("utf-8", "backslashreplace"))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise EnvironmentFault(
                f"{self._path} cannot be written: {error.strerror or error}."
            ) from error


def format_event(event: str, at_s: float, fields: dict[str, Any]) -> str:
    """Return an event's line, its newline included."""
    given = {key: value for key, value in fields.items() if value is not None}
    content, _ = to_plain({"time": round(at_s, 3), "event": event, **given})
    return json.dumps(content, ensure_ascii=False) + "\n"


def read_events(path: Path | str) -> list[dict[str, Any]]:
    """Return all events of a file, in order; a last line that a kill cut off is left out."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
