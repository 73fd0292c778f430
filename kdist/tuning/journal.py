"""search.jsonl: every decision of a search, one JSON object a line, before it is acted upon.

It alone says what has happened: a search that was killed, at whatever moment, is the fold of it.
The file names run folders inside of the search's folder relative to that, so that a search may be
moved or copied; everybody else has absolute paths.
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kdist.errors import ConfigError, EnvironmentFault
from kdist.records.atomic import append_whole
from kdist.tuning.request import TRIALS

NAME = "search.jsonl"
_START = "start"


class Journal:
    """Appends entries, each with the time in `at_s`: a whole line, or none."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Remember where to write; a last line that a kill cut off is ended by the first write."""
        self._path = path
        self._folder = path.absolute().parent
        self._clock = clock
        self._is_checked = False

    def write(self, do: str, **fields: Any) -> dict[str, Any]:
        """Append one entry and return it as a reader would see it.

        Raises:
            EnvironmentFault: If the file cannot be written.
        """
        entry = {"do": do, "at_s": round(self._clock(), 3), **fields}
        if do == _START:
            entry |= _portable(Path(entry["run_dir"]), self._folder)
        line = json.dumps(_plain(entry), ensure_ascii=False) + "\n"
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                if not self._is_checked:
                    _drop_cut_line(descriptor)
                self._is_checked = False  # Until the whole line is there.
                append_whole(descriptor, line.encode("utf-8", "backslashreplace"))
                self._is_checked = True
            finally:
                os.close(descriptor)
        except OSError as error:
            raise EnvironmentFault(
                f"{self._path} cannot be written: {error.strerror or error}. "
                "Check the space and the permissions there."
            ) from error
        return _located(json.loads(line), self._folder)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return all entries in order, with run folders where they are now; none without a journal.

    Raises:
        ConfigError: If the file is no journal.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        entries = [json.loads(line) for line in lines[:-1] if line]
        if any("do" not in entry for entry in entries):
            raise ValueError("an entry without `do`")
        return [_located(entry, path.absolute().parent) for entry in entries]
    except FileNotFoundError:
        return []
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(
            f"The journal of the search cannot be read: {error}. Received: {path}. Start a new "
            "search in another folder (hydra.run.dir=...)."
        ) from error


def _portable(run_dir: Path, folder: Path) -> dict[str, Any]:
    """Return how the journal names a run folder."""
    if run_dir.is_relative_to(folder):
        return {"run_dir": str(run_dir.relative_to(folder))}
    return {"run_dir": str(run_dir), "is_elsewhere": True}


def _located(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return an entry with the absolute path of its run folder.

    A journal of an earlier version has absolute paths only: runs of these names in the search's
    own folder come first, for it may be a copy.
    """
    if entry["do"] != _START or not isinstance(entry.get("run_dir"), str):
        return entry
    run_dir = Path(entry["run_dir"])
    own = folder / TRIALS / run_dir.name
    if run_dir.is_absolute() and not entry.get("is_elsewhere") and own.is_dir():
        run_dir = own
    return {**entry, "run_dir": str(folder / run_dir)}


def _drop_cut_line(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    content = os.pread(descriptor, size, 0)
    os.truncate(descriptor, content.rfind(b"\n") + 1)


def _plain(value: Any) -> Any:
    """Return JSON's own values; NaN and infinities become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
