"""All reports of a run behind one object that cannot end the run."""

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from kdist.training.best import best_of
from kdist.training.report.console import ConsoleReport
from kdist.training.report.curves import write_curves
from kdist.training.report.facts import (
    ContributionSample,
    EpochFacts,
    OpeningFacts,
    ProgressFacts,
    ServerContents,
)
from kdist.training.report.metrics_csv import MetricsCsv, Row
from kdist.training.report.placement import write_placement
from kdist.training.report.tensorboard import TensorBoardLog

# What writing a file, and reading back what others wrote there, can come to.
_FILE_ERRORS = (OSError, ValueError, csv.Error)
# Drawing can also fail over extreme values, fonts, or a broken matplotlib.
_DRAWING_ERRORS = (*_FILE_ERRORS, ArithmeticError, RuntimeError, ImportError)


class RunReport:
    """Console, metrics.csv, TensorBoard and curves.png of one run. Used by the chief only.

    A file that cannot be written is given up, and named once in `warnings`, which belongs into
    result.json. Call `finish` before result.json is written and `closing` after it.
    """

    def __init__(
        self,
        console: ConsoleReport,
        *,
        metrics_csv: str | os.PathLike[str],
        tensorboard: str | os.PathLike[str],
        curves_png: str | os.PathLike[str],
    ) -> None:
        """Report on `console` and into these files; nothing is shown or written yet."""
        self._console = console
        self._metrics_csv = MetricsCsv(metrics_csv)
        self._csv_path, self._png_path = Path(metrics_csv), Path(curves_png)
        self._tensorboard = TensorBoardLog(tensorboard)
        self._rows: list[dict[str, Any]] = []
        self._title = ""
        self._servers: tuple[ServerContents, ...] = ()
        self._notes: Sequence[str] = ()
        self._given_up: set[str] = set()
        self.warnings: list[str] = []

    def __enter__(self) -> "RunReport":
        """Return this report."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        self.close()

    def go_on_after(self, rows: Sequence[Row], batches_seen: int) -> None:
        """Report on a run that goes on; call it before anything else.

        Args:
            rows: Of metrics.csv, of the epochs that have ended.
            batches_seen: Batches of those epochs.
        """
        self._rows = [dict(row) for row in rows]
        self._console.go_on_after(batches_seen)
        self._tensorboard.go_on_after(batches_seen)
        if rows:
            self._try(self._csv_path, lambda: self._metrics_csv.go_on_after(rows))

    def opening(self, facts: OpeningFacts) -> None:
        """Show what is known before the first step."""
        self._title, self._servers = facts.mode_line, facts.servers
        self._notes = facts.notes
        self._tensorboard.opening(facts.settings)
        self._console.opening(facts)

    def status(self, text: str) -> None:
        """Show a passing state, such as `validating`, where somebody watches."""
        self._console.status(text)

    @property
    def is_progress_due(self) -> bool:
        """Whether `progress` would show something now; reading metrics costs time, so ask first."""
        return self._console.is_progress_due

    def progress(self, facts: ProgressFacts) -> None:
        """Show where training is, unless the last showing is only a moment ago."""
        self._console.progress(facts)

    def epoch(self, facts: EpochFacts) -> None:
        """Write and show what an epoch brought. Call it once an epoch, after validation."""
        if not facts.is_partial:
            self._rows.append({"epoch": facts.epoch, **facts.metrics})
        self._try(self._csv_path, lambda: self._metrics_csv.append(facts))
        self._try("TensorBoard's files", lambda: self._tensorboard.epoch(facts))
        self._console.epoch(facts)

    def contributions(self, sample: ContributionSample) -> None:
        """Write which workers contributed some updates."""
        self._try("TensorBoard's files", lambda: self._tensorboard.contributions(sample))

    def best(self, monitor: str | None = None, mode: str = "auto") -> dict[str, Any] | None:
        """Return result.json's `best` over the whole epochs so far, as `best_of` finds it."""
        return best_of(self._rows, monitor, mode)

    def finish(self, monitor: str | None = None, mode: str = "auto") -> None:
        """Draw curves.png and placement.png, end the TensorBoard files; after a failure too."""
        self._try("TensorBoard's files", self._tensorboard.close)
        self._try(
            self._png_path,
            lambda: write_curves(
                self._csv_path, self._png_path, title=self._title, best=self.best(monitor, mode)
            ),
            errors=_DRAWING_ERRORS,
        )
        placement = self._png_path.with_name("placement.png")
        if self._servers:
            self._try(
                placement,
                lambda: write_placement(self._servers, placement, title=self._title),
                errors=_DRAWING_ERRORS,
            )

    def closing(self, result: Mapping[str, Any]) -> None:
        """Show how the run ended, from the content of result.json.

        Warnings that the opening panel has shown as notes are not shown again.
        """
        warnings = [each for each in result.get("warnings") or () if each not in self._notes]
        self._console.closing({**result, "warnings": warnings})

    def close(self) -> None:
        """Leave the terminal as it was. May be called twice."""
        self._console.close()

    def _try(
        self,
        what: str | Path,
        action: Callable[[], object],
        *,
        errors: tuple[type[Exception], ...] = _FILE_ERRORS,
    ) -> None:
        name = what.name if isinstance(what, Path) else what
        if name in self._given_up:
            return
        try:
            action()
        except errors as error:
            self._given_up.add(name)
            self.warnings.append(f"Gave up writing {name}: {error}")
