"""search.png: the objective over trials, and each hyperparameter against the objective."""

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdist.records.atomic import replacing
from kdist.tuning.objective import Objective
from kdist.tuning.table import value_names
from kdist.tuning.trials import FAILED, SCORED, SearchState, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINT, _BEST, _FAILED = "#3b6fb6", "#d1662b", "#b00020"
_LOG_FROM = 50.0
_MAX_PANELS = 12


def draw_search(state: SearchState, objective: Objective, path: Path) -> bool:
    """Draw a search; return whether there was anything to draw.

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
    _draw_over_trials(grid[0], state, trials, objective)
    for axes, name in zip(grid[1:], names, strict=False):
        _draw_against(axes, trials, name, best)
    for axes in grid:
        if axes in grid[num_panels:]:
            axes.set_axis_off()
            continue
        axes.set_ylabel(_escaped(objective.name))
        axes.grid(True, color="#e3e3e3", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if _is_log([trial.score or 0.0 for trial in trials]):
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


def _draw_against(axes: "Axes", trials: list[Trial], name: str, best: Trial | None) -> None:
    having = [trial for trial in trials if name in trial.values]
    values = _values(trials, name)
    is_number = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    xs: list[Any] = values if is_number else [_escaped(str(value)) for value in values]
    axes.plot(xs, [trial.score or 0.0 for trial in having], "o", color=_POINT, markersize=5)
    if best is not None and name in best.values:
        x = best.values[name] if is_number else _escaped(str(best.values[name]))
        axes.plot(
            [x], [best.score or 0.0], "*", color=_BEST, markersize=13, markeredgecolor="white"
        )
    if is_number and _is_log([float(value) for value in values]):
        axes.set_xscale("log")
    axes.set_xlabel(_escaped(name))


def _values(trials: list[Trial], name: str) -> list[Any]:
    return [trial.values[name] for trial in trials if name in trial.values]


def _is_log(values: list[float]) -> bool:
    return bool(values) and 0 < min(values) * _LOG_FROM < max(values)


def _escaped(text: str) -> str:
    """Return text safe from matplotlib's mathematics mode."""
    return text.replace("$", r"\$")
