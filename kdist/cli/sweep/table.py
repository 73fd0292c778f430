"""What a sweep came to, as a table for people and as sweep.csv. Pure texts."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kdist.cli.sweep.jobs import NOT_STARTED, Outcome, SweepJob
from kdist.records.result import COMPLETED, FAILED, STOPPED
from kdist.training.best import more_is_better

Rows = Sequence[tuple[SweepJob, Outcome]]
_STATUSES = (COMPLETED, FAILED, STOPPED, NOT_STARTED)
_SHOWN_ERROR = 100
SEED = "seed"


@dataclass(frozen=True, kw_only=True)
class OverSeeds:
    """Jobs that differ in nothing but their seed.

    Attributes:
        label: What they have in common, in one line.
        metric: What they go by.
        values: The best value of each.
    """

    label: str
    metric: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation over the seeds, as of a sample; 0 for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        """Return mean and standard deviation in one line."""
        return (
            f"{self.metric} {self.mean:.5g} (standard deviation {self.deviation:.2g}, "
            f"{len(self.values)} seed(s))"
        )


def over_seeds(rows: Rows) -> list[OverSeeds]:
    """Return the jobs that have a value, joined over seeds, best first.

    Nothing where seeds do not vary, or where jobs go by different metrics.
    """
    measured = [(job, outcome) for job, outcome in rows if outcome.value is not None]
    metrics = {str(outcome.metric) for _, outcome in measured}
    groups = group_by_others(measured, SEED)
    if len(metrics) != 1 or all(len(group) < 2 for group in groups.values()):
        return []
    if any(SEED not in job.values for job, _ in measured):
        return []
    [metric] = metrics
    found = [
        OverSeeds(
            label=label,
            metric=metric,
            values=tuple(outcome.value for _, outcome in group if outcome.value is not None),
        )
        for label, group in groups.items()
    ]
    return sorted(found, key=lambda each: each.mean, reverse=more_is_better(metric))


def best_row(rows: Rows) -> tuple[SweepJob, Outcome] | None:
    """Return the job with the best value; `None` where jobs go by different metrics, or none."""
    measured = [(job, outcome) for job, outcome in rows if outcome.value is not None]
    metrics = {outcome.metric for _, outcome in measured}
    if len(metrics) != 1:
        return None
    sign = -1.0 if more_is_better(str(metrics.pop())) else 1.0
    return min(measured, key=lambda row: sign * (row[1].value or 0.0))


def render_table(rows: Rows, folder: Path) -> str:
    """Return the table of all jobs, what the best one is, and where the files are."""
    cells = [("job", "overrides", "status", "best", "seconds")]
    cells += [_cells(job, outcome) for job, outcome in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if column == len(widths) - 1 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    counts = {name: sum(outcome.status == name for _, outcome in rows) for name in _STATUSES}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    lines += ["", f"Sweep: {len(rows)} job(s), {told}. {folder}"]
    lines += [
        f"Job {job.number} {outcome.status}: {_one_line(outcome.error)}"
        for job, outcome in rows
        if outcome.error and outcome.status == FAILED
    ]
    return "\n".join([*lines, *_summary(rows)]) + "\n"


def _summary(rows: Rows) -> list[str]:
    """Return which job is best; where seeds vary, what comes of them: none of them is better."""
    if joined := over_seeds(rows):
        title = "Over seeds, best first:" if len(joined) > 1 else "Over seeds:"
        return [title, *(f"{each.label}  {each}".strip() for each in joined)]
    best = best_row(rows)
    if best is None or len(rows) < 2:
        return []
    return [f"Best: job {best[0].number}, {_shown_value(best[1])}. {best[0].label}"]


def render_csv(rows: Rows) -> str:
    """Return sweep.csv: a row a job, and a column for each key in which jobs differ."""
    keys = dict.fromkeys(key for job, _ in rows for key in job.values)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["job", "status", "metric", "best", "seconds", *keys, "overrides", "folder", "error"]
    )
    for job, outcome in rows:
        writer.writerow(
            [
                job.number,
                outcome.status,
                outcome.metric,
                outcome.value,
                None if outcome.seconds is None else round(outcome.seconds, 3),
                *(job.values.get(key) for key in keys),
                job.label,
                job.composition.run_dir if job.trains else None,
                outcome.error,
            ]
        )
    return text.getvalue()


def describe(job: SweepJob, outcome: Outcome) -> str:
    """Return one line on how a job ended."""
    took = "" if outcome.seconds is None else f" in {outcome.seconds:.1f} s"
    value = "" if outcome.value is None else f": {_shown_value(outcome)}"
    return f"Job {job.number} {outcome.status}{took}{value}."


def numeric_values(rows: Rows, key: str) -> list[float] | None:
    """Return a key's values as numbers; `None` unless all of them are."""
    try:
        return [float(job.values[key]) for job, _ in rows]
    except (KeyError, ValueError):
        return None


def group_by_others(rows: Rows, *keys: str) -> Mapping[str, Rows]:
    """Return the rows by what they have apart from `keys`, as one line of text."""
    groups: dict[str, list[tuple[SweepJob, Outcome]]] = {}
    for job, outcome in rows:
        label = " ".join(
            f"{name}={value}" for name, value in job.values.items() if name not in keys
        )
        groups.setdefault(label, []).append((job, outcome))
    return groups


def _cells(job: SweepJob, outcome: Outcome) -> tuple[str, ...]:
    seconds = "-" if outcome.seconds is None else f"{outcome.seconds:.1f}"
    return (str(job.number), job.label or "-", outcome.status, _shown_value(outcome), seconds)


def _shown_value(outcome: Outcome) -> str:
    return "-" if outcome.value is None else f"{outcome.metric} {outcome.value:.5g}"


def _one_line(text: str | None) -> str:
    line = (text or "").splitlines()[0] if text else ""
    return line if len(line) <= _SHOWN_ERROR else f"{line[: _SHOWN_ERROR - 3]}..."
