"""search.png: the objective over trials, and each hyperparameter against the objective."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdist.config.space import Hyperparameter
from kdist.records.atomic import replacing
from kdist.tuning.axes import Axis, axis_of, spans_decades
from kdist.tuning.objective import Objective
from kdist.tuning.table import value_names
from kdist.tuning.trials import FAILED, SCORED, SearchState, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINT, _BEST, _FAILED = "#3b6fb6", "#d1662b", "#b00020"
_MAX_PANELS = 12
_FEW_DECADES = 200.0  # On so wide an axis three ticks a decade find room.
_WIDE_LABELS = 30  # Characters that fit below a panel side by side.


def draw_search(
    state: SearchState, objective: Objective, space: Sequence[Hyperparameter], path: Path
) -> bool:
    """Draw a search over `space`; return whether there was anything to draw.

    Raises:
        EnvironmentFault: If the file cannot be written.
    """
    trials = [trial for trial in state.with_status(*SCORED) if trial.score is not None]
    if not trials:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in value_names(state) if len(_values(trials, name)) > 0]
    names = names[: _MAX_PANELS - 1]
    num_panels = 1 + len(names)
    num_columns = min(3, num_panels)
    num_rows = math.ceil(num_panels / num_columns)
    size = (4.4 * num_columns + 0.4, 3.3 * num_rows + 0.5)
    figure = Figure(figsize=size, layout="constrained", dpi=120)
    canvas = FigureCanvasAgg(figure)
    grid = [axes for row in figure.subplots(num_rows, num_columns, squeeze=False) for axes in row]
    best = state.best(objective)
    entries = {entry.key: entry for entry in space}
    _draw_over_trials(grid[0], state, trials, objective)
    for axes, name in zip(grid[1:], names, strict=False):
        axis = axis_of(_values(trials, name), entries.get(name))
        _draw_against(axes, trials, name, axis, best)
    for axes in grid:
        if axes in grid[num_panels:]:
            axes.set_axis_off()
            continue
        axes.set_ylabel(_escaped(objective.name))
        axes.grid(True, color="#e3e3e3", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if spans_decades([trial.score or 0.0 for trial in trials]):
            axes.set_yscale("log")
    heading = f"best: trial {best.id}, {objective.name} {best.score:.5g}" if best else ""
    figure.suptitle(_escaped(heading), fontsize=11)
    picture = io.BytesIO()
    canvas.print_png(picture, metadata={"Software": None})
    with replacing(path) as unfinished:
        unfinished.write_bytes(picture.getvalue())
    return True


def _draw_over_trials(
    axes: "Axes", state: SearchState, trials: list[Trial], objective: Objective
) -> None:
    from matplotlib.ticker import MaxNLocator

    order = {trial: number for number, trial in enumerate(state.trials)}
    at = [order[trial.id] for trial in trials]
    scores = [trial.score or 0.0 for trial in trials]
    axes.plot(at, scores, "o", color=_POINT, markersize=5, label="trial")
    best_so_far, running = [], scores[0]
    for score in scores:
        running = score if objective.is_better(score, running) else running
        best_so_far.append(running)
    axes.plot(at, best_so_far, color=_BEST, drawstyle="steps-post", label="best so far")
    for number in (order[trial.id] for trial in state.with_status(FAILED)):
        axes.axvline(number, color=_FAILED, linewidth=0.8, linestyle=":")
    axes.set_xlabel("trial")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend(frameon=False, fontsize=8)


def _draw_against(
    axes: "Axes", trials: list[Trial], name: str, axis: Axis, best: Trial | None
) -> None:
    having = [trial for trial in trials if name in trial.values]
    xs = [axis.place_of(trial.values[name]) for trial in having]
    axes.plot(xs, [trial.score or 0.0 for trial in having], "o", color=_POINT, markersize=5)
    if best is not None and name in best.values:
        x = axis.place_of(best.values[name])
        axes.plot(
            [x], [best.score or 0.0], "*", color=_BEST, markersize=13, markeredgecolor="white"
        )
    _scale(axes, axis)
    axes.set_xlabel(_escaped(name))


def _scale(axes: "Axes", axis: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if axis.labels is not None:
        axes.set_xticks(range(len(axis.labels)), [_escaped(label) for label in axis.labels])
        axes.set_xlim(-0.5, len(axis.labels) - 0.5)
        if len("  ".join(axis.labels)) > _WIDE_LABELS:
            axes.tick_params("x", labelrotation=30)
    elif axis.is_log:
        axes.set_xscale("log")
        least, most = axes.get_xlim()
        if most < _FEW_DECADES * least:
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.tick_params("x", labelsize=8)
    elif axis.is_whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _values(trials: list[Trial], name: str) -> list[Any]:
    return [trial.values[name] for trial in trials if name in trial.values]


def _escaped(text: str) -> str:
    """Return text safe from matplotlib's mathematics mode."""
    return text.replace("$", r"\$")
