"""sweep.png: the best value of every job. Imports matplotlib, so it is imported late."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kdist.cli.sweep.table import Rows, group_by_others, numeric_values
from kdist.records.atomic import replacing

_LOG_FROM = 50.0  # How far apart the values of a key lie when its axis becomes logarithmic.
_MAX_LABEL = 60


def draw_sweep(rows: Rows, path: Path) -> None:
    """Draw the jobs that have a value; nothing where no job has one.

    Values over a numeric key become lines, one for each combination of the other keys. Where no
    single key is numeric, each job is a bar.

    Raises:
        EnvironmentFault: If the file cannot be written.
    """
    measured = [(job, outcome) for job, outcome in rows if outcome.value is not None]
    if not measured:
        return
    keys = dict.fromkeys(key for job, _ in measured for key in job.values)
    numeric = [key for key in keys if len(set(numeric_values(measured, key) or ())) > 1]
    figure = Figure(figsize=(8, max(4.0, 1.5 + 0.3 * len(measured))), layout="constrained")
    axes = figure.add_subplot()
    if len(numeric) == 1:
        _draw_lines(axes, measured, numeric[0])
    else:
        _draw_bars(axes, measured)
    with replacing(path) as unfinished:
        figure.savefig(unfinished, dpi=120)


def _draw_lines(axes: Axes, rows: Rows, key: str) -> None:
    for label, group in group_by_others(rows, key).items():
        points = sorted(
            (number, outcome.value)
            for number, (_, outcome) in zip(numeric_values(group, key) or (), group, strict=True)
        )
        axes.plot(*zip(*points, strict=True), marker="o", label=_short(label) or None)
    numbers = numeric_values(rows, key) or []
    if min(numbers) > 0 and max(numbers) / min(numbers) >= _LOG_FROM:
        axes.set_xscale("log")
    axes.set_xlabel(key)
    axes.set_ylabel(_metric_label(rows))
    axes.grid(alpha=0.3)
    if any(label for label in group_by_others(rows, key)):
        axes.legend(fontsize="small")


def _draw_bars(axes: Axes, rows: Rows) -> None:
    labels = [f"{job.number}: {_short(job.label)}" for job, _ in rows]
    axes.barh(labels, [outcome.value or 0.0 for _, outcome in rows])
    axes.invert_yaxis()
    axes.set_xlabel(_metric_label(rows))
    axes.grid(axis="x", alpha=0.3)


def _metric_label(rows: Rows) -> str:
    return " / ".join(sorted({f"best {outcome.metric}" for _, outcome in rows}))


def _short(label: str) -> str:
    return label if len(label) <= _MAX_LABEL else f"{label[: _MAX_LABEL - 3]}..."
