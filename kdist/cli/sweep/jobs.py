"""The jobs of a sweep, and what became of them."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdist.cli.composition import Composition
from kdist.errors import ConfigError, KdistError
from kdist.records.result import COMPLETED, FAILED, STOPPED, read_result
from kdist.training.best import best_of

NOT_STARTED = "not started"


@dataclass(frozen=True, kw_only=True)
class SweepJob:
    """One run of a sweep.

    Attributes:
        number: Its number in the sweep.
        values: What it was given that other jobs were not, key to text.
        composition: Its configuration.
        hydra: Hydra's own part of it, which `${hydra:...}` reads.
    """

    number: int
    values: Mapping[str, str]
    composition: Composition
    hydra: Any

    @property
    def label(self) -> str:
        """Its overrides in one line."""
        return " ".join(f"{key}={value}" for key, value in self.values.items())

    @property
    def trains(self) -> bool:
        """Whether it makes a run folder."""
        return self.composition.tree.get("command", "train") == "train"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a job.

    Attributes:
        status: completed, stopped, failed or not started.
        metric: The metric that `value` is of.
        value: Its best value over the epochs; `None` where there is none that is finite.
        seconds: From its start to its end.
        error: What went wrong.
        is_told: Whether the user has seen the error.
    """

    status: str
    metric: str | None = None
    value: float | None = None
    seconds: float | None = None
    error: str | None = None
    is_told: bool = False


def failed(error: BaseException | str, seconds: float | None = None) -> Outcome:
    """Return the outcome of a job that ended with an error before, or beside, its run."""
    text = str(error) if isinstance(error, KdistError | str) else f"{type(error).__name__}: {error}"
    return Outcome(status=FAILED, error=text, seconds=seconds)


def outcome_of_run(
    run_dir: Path, *, metric: str | None, status: str | None = None, error: str | None = None
) -> Outcome:
    """Return what the files of a run folder say.

    Args:
        run_dir: The folder.
        metric: The metric to report, by its best epoch; what the run went by, unless given.
        status: How the run ended, where that is known better than result.json has it.
        error: Likewise.

    Raises:
        ConfigError: If there is no result, or the run has no such metric.
    """
    result = read_result(run_dir / "result.json")
    best = result.get("best") or {}
    if metric is not None:
        best = _best_in(run_dir / "metrics.csv", metric)
    return Outcome(
        status=status or str(result["status"]),
        metric=best.get("monitor"),
        value=best.get("value"),
        seconds=(result.get("seconds") or {}).get("total"),
        error=error or (result.get("error") or {}).get("message"),
    )


def status_of(exit_code: int) -> str:
    """Return the status that an exit code means."""
    return {0: COMPLETED, 130: STOPPED, 143: STOPPED}.get(exit_code, FAILED)


def _best_in(metrics_csv: Path, metric: str) -> Mapping[str, Any]:
    """Return the best epoch by a metric, as `best` of result.json has it."""
    if not metrics_csv.is_file():
        return {}
    with metrics_csv.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    if rows and metric not in rows[0]:
        raise ConfigError(
            f"sweep.metric must be a metric of the run. Received: {metric}. It has: "
            f"{', '.join(name for name in rows[0] if name not in _NO_METRICS)}."
        )
    return best_of([_numbers(row) for row in rows], metric) or {}


_NO_METRICS = ("epoch", "global_step", "seconds", "examples", "learning_rate")


def _numbers(row: Mapping[str, str]) -> dict[str, float]:
    return {name: float(text) if text else math.nan for name, text in row.items()}
