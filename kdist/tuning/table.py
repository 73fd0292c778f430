"""The trials of a search as rows: search.csv and what the console shows. Pure."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kdist.training.report.formats import duration_text, metric_text
from kdist.tuning.objective import Objective
from kdist.tuning.trials import RUNNING, SearchState, Trial

_HEAD = ("trial", "status", "objective", "best_epoch", "epochs", "seconds", "retries")
_TAIL = ("parent", "run_dir", "reason")


def render_csv(state: SearchState, objective: Objective) -> str:
    """Return search.csv: a row a trial, in the order of their beginning, values among columns."""
    names = value_names(state)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_HEAD, *names, *_TAIL])
    for trial in state.trials.values():
        score, epoch = trial.score, trial.best_epoch
        if trial.status == RUNNING:
            score, epoch = trial.best_point(objective)
        seconds = None if trial.seconds is None else round(trial.seconds, 3)
        head = (trial.id, trial.status, score, epoch, epochs_of(trial), seconds)
        values = (_cell(trial.values.get(name)) for name in names)
        tail = (trial.parent, trial.best_run_dir(objective), trial.reason)
        cells = (*head, len(trial.failures), *values, *tail)
        writer.writerow(["" if cell is None else cell for cell in cells])
    return text.getvalue()


def value_names(state: SearchState) -> list[str]:
    """Return every key that some trial has a value of, in the order of their appearance."""
    return list(dict.fromkeys(name for trial in state.trials.values() for name in trial.values))


def epochs_of(trial: Trial) -> int:
    """Return the last epoch that some run of a trial came to."""
    reached = [max(e.epochs) for e in trial.executions.values() if e.epochs]
    return max(reached, default=trial.initial_epoch)


@dataclass(frozen=True)
class Line:
    """One trial as the console shows it."""

    id: str
    status: str
    objective: str
    epoch: str
    seconds: str
    values: str
    is_best: bool


def line_of(trial: Trial, state: SearchState, objective: Objective, now_s: float) -> Line:
    """Return a trial's line."""
    best = state.best(objective)
    value = trial.score if trial.score is not None else trial.best_point(objective)[0]
    seconds = trial.seconds
    if seconds is None and trial.work_time.has_begun:
        seconds = trial.work_time.until(now_s)
    return Line(
        id=trial.id,
        status=trial.status,
        objective="" if value is None else metric_text(value),
        epoch=f"{epochs_of(trial)}/{trial.epochs}",
        seconds="" if seconds is None else duration_text(seconds),
        values=values_text(trial.values),
        is_best=best is trial,
    )


def values_text(values: Mapping[str, Any]) -> str:
    """Return values in one line."""
    return "  ".join(f"{name}={_shown(value)}" for name, value in values.items())


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _cell(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else value
