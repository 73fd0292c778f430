"""curves.png: the run at a glance, drawn from metrics.csv."""

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdist.training.report.formats import escaped, metric_text
from kdist.training.report.metrics_csv import Row, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NOT_METRICS = frozenset({"epoch", "global_step", "seconds", "examples", "learning_rate"})
_TRAIN, _VALIDATION, _RATE, _BEST = "#3b6fb6", "#d1662b", "#4c8c5a", "#8a8a8a"


@dataclass(frozen=True)
class Panel:
    """One pair of axes: a metric in training and in validation, or the learning rate."""

    title: str
    train: tuple[float | None, ...]
    validation: tuple[float | None, ...] = ()
    is_log: bool = False
    not_finite_from: int | None = None


def plan_panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Return what to draw, loss first, the learning rate last and only where it changes."""
    names = dict.fromkeys(name for row in rows for name in row if name not in _NOT_METRICS)
    bases = dict.fromkeys(name.removeprefix("val_") for name in names)
    titles = sorted(bases, key=lambda name: name != "loss")
    panels = [
        _panel(rows, title, validation=f"val_{title}", log_from=50 if "loss" in title else 0)
        for title in titles
    ]
    if len({row.get("learning_rate") for row in rows} - {None}) > 1:
        panels.append(_panel(rows, "learning_rate", validation=None, log_from=8))
    return tuple(panels)


def _panel(rows: Sequence[Row], title: str, *, validation: str | None, log_from: float) -> Panel:
    series = [
        tuple(row.get(name) for row in rows) if name is not None else ()
        for name in (title, validation)
    ]
    finite = [v for values in series for v in values if v is not None and math.isfinite(v)]
    bad_epochs = [
        int(row["epoch"] or 0)
        for values in series
        for row, value in zip(rows, values, strict=False)
        if value is not None and not math.isfinite(value)
    ]
    return Panel(
        title=title,
        train=series[0],
        validation=series[1],
        is_log=bool(log_from and finite) and 0 < min(finite) * log_from < max(finite),
        not_finite_from=min(bad_epochs, default=None),
    )


def write_curves(
    metrics_csv_path: str | os.PathLike[str],
    png_path: str | os.PathLike[str],
    *,
    title: str = "",
    best: dict[str, Any] | None = None,
) -> bool:
    """Draw the curves of a run, with the best epoch marked.

    Args:
        metrics_csv_path: The run's metrics.csv.
        png_path: The picture, replaced as a whole.
        title: A line above the panels, such as the mode.
        best: The epoch to mark, as `best_of` returns it.

    Returns:
        Whether there was anything to draw.

    Raises:
        OSError: If a file cannot be read or written.
    """
    rows = read_metrics(metrics_csv_path)
    panels = plan_panels(rows)
    if not panels:
        return False
    data = _draw(rows, panels, title=title, best=best)
    path = Path(png_path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _draw(rows: Sequence[Row], panels: Sequence[Panel], *, title: str, best: dict | None) -> bytes:
    # The object API needs neither pyplot's global state nor a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_columns = min(len(panels), 2 if len(panels) in (2, 4) else 3)
    num_rows = math.ceil(len(panels) / num_columns)
    figure = Figure(
        figsize=(4.6 * num_columns + 0.4, 3.3 * num_rows + 0.5), layout="constrained", dpi=120
    )
    canvas = FigureCanvasAgg(figure)
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True)
    epochs = [int(row["epoch"] or 0) for row in rows]
    flat = [axes for line in grid for axes in line]
    for index, axes in enumerate(flat):
        if index >= len(panels):
            axes.set_axis_off()
            continue
        _draw_panel(axes, epochs, panels[index], best)
        if index + num_columns >= len(panels):
            axes.set_xlabel("epoch")
            axes.tick_params(labelbottom=True)
    heading = [escaped(title)] if title else []
    if best is not None:
        heading.append(
            f"best epoch {best['epoch']}: {escaped(best['monitor'])} {metric_text(best['value'])}"
        )
    figure.suptitle("   |   ".join(heading), fontsize=11)
    picture = io.BytesIO()
    canvas.print_png(picture, metadata={"Software": None})
    return picture.getvalue()


def _draw_panel(axes: "Axes", epochs: Sequence[int], panel: Panel, best: dict | None) -> None:
    from matplotlib.ticker import MaxNLocator

    # Markers tell single epochs apart while there are few, and vanish before they become a smear.
    size = 6.0 if len(epochs) <= 3 else 3.5 if len(epochs) <= 30 else 0.0
    style = {"linewidth": 1.6 if len(epochs) <= 100 else 1.1, "marker": "o", "markersize": size}
    is_rate = panel.title == "learning_rate"
    lines = 0
    for label, values, color in (
        ("learning rate" if is_rate else "train", panel.train, _RATE if is_rate else _TRAIN),
        ("validation", panel.validation, _VALIDATION),
    ):
        points = [
            (x, y)
            for x, y in zip(epochs, values, strict=False)
            if y is not None and math.isfinite(y)
        ]
        if points:
            where = "steps-pre" if is_rate else "default"
            axes.plot(
                *zip(*points, strict=True), label=label, color=color, drawstyle=where, **style
            )
            lines += 1
    if best is not None:
        axes.axvline(best["epoch"], color=_BEST, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        if best["monitor"].removeprefix("val_") == panel.title:
            color = _VALIDATION if best["monitor"].startswith("val_") else _TRAIN
            axes.plot(
                [best["epoch"]], [best["value"]], label=f"best (epoch {best['epoch']})",
                color=color, marker="*", markersize=13, markeredgecolor="white", linestyle="none",
            )  # fmt: skip
    if panel.is_log:
        axes.set_yscale("log")
    axes.set_title(escaped(panel.title.replace("_", " ")), fontsize=10, loc="left")
    if panel.not_finite_from is not None:
        text = f"not finite from epoch {panel.not_finite_from}"
        axes.set_title(text, fontsize=9, loc="right", color="#b00020")
    first, last = epochs[0], epochs[-1]
    margin = max(0.5, 0.02 * (last - first))
    axes.set_xlim(first - margin, last + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_axisbelow(True)
    axes.grid(True, color="#e3e3e3", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if lines and not is_rate:
        axes.legend(frameon=False, fontsize=8)
