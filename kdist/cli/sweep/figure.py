"""sweep.png: the best value of every job. Imports matplotlib, so it is imported late."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kdist.cli.sweep.table import SEED, Rows, group_by_others, numeric_values
from kdist.records.atomic import replacing

_LOG_FROM = 50.0  # How far apart the values of a key lie when its axis becomes logarithmic.
_MAX_LABEL = 60


def draw_sweep(rows: Rows, path: Path) -> None:
    """Draw the jobs that have a value; nothing where no job has one.

    Raises:
        EnvironmentFault: If the file cannot be written.
    """
    measured = [(job, outcome) for job, outcome in rows if outcome.value is not None]
    if measured:
        with replacing(path) as unfinished:
            figure_of(measured).savefig(unfinished, dpi=120)


def figure_of(measured: Rows) -> Figure:
    """Return the figure of jobs that all have a value.

    Values over a numeric key become lines, one for each combination of the other keys; seeds are
    joined. Where no single key is numeric, each job is a bar.
    """
    keys = dict.fromkeys(key for job, _ in measured for key in job.values)
    numeric = [key for key in keys if len(set(numeric_values(measured, key) or ())) > 1]
    if len(numeric) == 2 and SEED in numeric:
        numeric.remove(SEED)
    figure = Figure(figsize=(8, max(4.0, 1.5 + 0.3 * len(measured))), layout="constrained")
    axes = figure.add_subplot()
    if len(numeric) == 1:
        _draw_lines(axes, measured, numeric[0])
    else:
        _draw_bars(axes, measured)
    return figure


def _draw_lines(axes: Axes, rows: Rows, key: str) -> None:
    """Draw values over a key, means and standard deviations over seeds; seeds are no scale."""
    groups = group_by_others(rows, key, SEED)
    is_joined = False
    for label, group in groups.items():
        points: dict[float, list[float]] = {}
        for number, (_, outcome) in zip(numeric_values(group, key) or (), group, strict=True):
            points.setdefault(number, []).append(outcome.value or 0.0)
        numbers = sorted(points)
        spreads = [stdev(points[each]) if len(points[each]) > 1 else 0.0 for each in numbers]
        is_joined = is_joined or any(len(values) > 1 for values in points.values())
        axes.errorbar(
            numbers,
            [fmean(points[each]) for each in numbers],
            yerr=spreads if any(spreads) else None,
            marker="o",
            linestyle="none" if key == SEED else "-",
            capsize=3,
            label=_short(label) or None,
        )
    _scale(axes, numeric_values(rows, key) or [])
    axes.set_xlabel(key)
    axes.set_ylabel(_metric_label(rows) + (", mean over seeds" if is_joined else ""))
    axes.grid(alpha=0.3)
    if any(groups):
        axes.legend(fontsize="small")


def _scale(axes: Axes, numbers: Sequence[float]) -> None:
    """Make the axis of a key logarithmic where values lie far apart; integers get integer ticks."""
    if min(numbers) > 0 and max(numbers) / min(numbers) >= _LOG_FROM:
        axes.set_xscale("log")
    elif all(number.is_integer() for number in numbers):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


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
