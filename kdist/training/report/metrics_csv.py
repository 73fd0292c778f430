"""metrics.csv: one row an epoch, readable while the run goes on and after it was killed."""

import csv
import io
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kdist.training.report.facts import EpochFacts

_HEAD = ("epoch", "global_step", "seconds", "examples")
_TAIL = ("learning_rate",)
_WHOLE_NUMBERS = frozenset({"epoch", "global_step", "examples"})

Cell = int | float | None
Row = dict[str, Cell]


class MetricsCsv:
    """Appends epochs to a CSV file. Used by the chief only.

    Columns are epoch, global_step, seconds, examples, the metrics, the `val_` metrics and
    learning_rate. A cell is empty where an epoch has no such value; what is not finite is written
    as `nan`, `inf` or `-inf`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Append to `path`; nothing is read or written yet."""
        self._path = Path(path)
        self._columns: tuple[str, ...] | None = None

    def append(self, facts: EpochFacts) -> None:
        """Add the row of an epoch, in one write.

        The first row of this process and a row with a new metric rewrite the file, atomically:
        the rows of earlier epochs stay, those of this epoch and later ones (left by an attempt
        that was resumed from an earlier point) go.

        Raises:
            OSError: If the file cannot be read or written.
        """
        row = row_of(facts)
        if self._columns is not None and row.keys() <= set(self._columns):
            _append_line(self._path, _csv_text(self._columns, [row], with_header=False))
            return
        kept = [old for old in self.read() if (old.get("epoch") or 0) < facts.epoch]
        self._columns = _columns_of([*kept, row])
        _write_atomically(self._path, _csv_text(self._columns, [*kept, row], with_header=True))

    def go_on_after(self, rows: Sequence[Row]) -> None:
        """Let the file hold these rows and no others: those of the epochs before this attempt.

        Raises:
            OSError: If the file cannot be written.
        """
        self._columns = _columns_of(rows)
        _write_atomically(self._path, _csv_text(self._columns, rows, with_header=True))

    def read(self) -> list[Row]:
        """Return the rows of the file; none if there is no file.

        Raises:
            OSError: If the file cannot be read.
        """
        return read_metrics(self._path)


def read_metrics(path: str | os.PathLike[str]) -> list[Row]:
    """Return the rows of a metrics.csv; none if there is no such file.

    A last line without line break (its writer was killed) is left out.

    Raises:
        OSError: If the file cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    complete = text[: text.rfind("\n") + 1]
    rows = csv.DictReader(io.StringIO(complete, newline=""))
    return [{k: _cell(k, v) for k, v in row.items() if k is not None} for row in rows]


def row_of(facts: EpochFacts) -> Row:
    """Return the row of an epoch, by column."""
    fixed = {*_HEAD, *_TAIL}
    metrics = {
        f"metrics.{name}" if name in fixed else name: float(value)
        for name, value in facts.metrics.items()
    }
    return {
        "epoch": facts.epoch,
        "global_step": facts.global_step,
        "seconds": facts.seconds,
        "examples": facts.examples,
        **metrics,
        "learning_rate": facts.learning_rate,
    }


def _columns_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return all columns in the order of the contract."""
    names = dict.fromkeys(name for row in rows for name in row if name not in {*_HEAD, *_TAIL})
    train = [name for name in names if not name.startswith("val_")]
    validation = [name for name in names if name.startswith("val_")]
    return (*_HEAD, *train, *validation, *_TAIL)


def _csv_text(
    columns: Sequence[str], rows: Iterable[Mapping[str, Cell]], *, with_header: bool
) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    if with_header:
        writer.writerow(columns)
    for row in rows:
        cells = (row.get(name) for name in columns)
        writer.writerow(["" if value is None else repr(value) for value in cells])
    return text.getvalue()


def _cell(column: str, text: str | None) -> Cell:
    if not text:
        return None
    return int(text) if column in _WHOLE_NUMBERS else float(text)


def _append_line(path: Path, text: str) -> None:
    data = text.encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def _write_atomically(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
