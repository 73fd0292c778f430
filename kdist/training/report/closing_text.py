"""What the console says of a run that has ended, in the terminal and plainly. Pure functions."""

from collections.abc import Mapping
from typing import Any

from kdist.training.report.facts import EpochFacts
from kdist.training.report.formats import (
    count_text,
    duration_text,
    plural_text,
    printable,
    rate_text,
)
from kdist.training.report.text import Line, labelled


def closing_title(result: Mapping[str, Any]) -> str:
    """Return how the run ended, in a few words."""
    seconds = (result.get("seconds") or {}).get("total")
    duration = (
        ""
        if seconds is None
        else f" {'after' if result.get('error') else 'in'} {duration_text(seconds)}"
    )
    return f"{result.get('status', 'ended')}{duration}"


def closing_lines(result: Mapping[str, Any]) -> tuple[Line, ...]:
    """Return what stands below the metrics: throughput, counts, warnings, files.

    The error of a failed run is left out: the launcher prints the root cause, once.
    """
    lines = []
    speeds = [
        rate_text(result[key], unit)
        for key, unit in (("steps_per_second", "step"), ("examples_per_second", "example"))
        if result.get(key)
    ]
    if speeds:
        lines.append(Line("throughput", ", ".join(speeds)))
    seconds = result.get("seconds") or {}
    times = [
        f"{duration_text(seconds[key])} {words}"
        for key, words in (("startup", "until the first step"), ("train", "training"))
        if seconds.get(key) is not None
    ]
    if times:
        lines.append(Line("time", ", ".join(times)))
    counts = [
        plural_text(result[key], noun)
        for key, noun in (("batches_seen", "batch"), ("examples_seen", "example"))
        if result.get(key) is not None
    ]
    if counts:
        lines.append(Line("trained on", ", ".join(counts)))
    lines.extend(update_lines(result))
    lost, restarts = result.get("workers_lost") or 0, result.get("restarts") or 0
    if lost or restarts:
        text = f"{plural_text(lost, 'worker')} lost, {plural_text(restarts, 'restart')}"
        lines.append(Line("faults", text, is_warning=True))
    lines.extend(labelled("warning", result.get("warnings") or (), is_warning=True))
    if result.get("run_dir"):
        lines.append(Line("run folder", str(result["run_dir"])))
    return tuple(Line(line.label, printable(line.text), line.is_warning) for line in lines)


def update_lines(result: Mapping[str, Any]) -> tuple[Line, ...]:
    """Return how updates on parameter servers came about; nothing for other modes."""
    lines = []
    staleness = result.get("staleness")
    if staleness and staleness["histogram"]:
        total = sum(staleness["histogram"].values())
        shares = [
            f"{age}: {count / total:.0%}" for age, count in list(staleness["histogram"].items())[:6]
        ]
        if len(staleness["histogram"]) > len(shares):
            shares.append("...")
        text = (
            f"{staleness['mean']:.2g} updates on average, {staleness['maximum']} at most "
            f"({', '.join(shares)})"
        )
        lines.append(Line("staleness", text))
    contributions = result.get("contributions")
    if contributions:
        parts = [f"{task} {count_text(count)}" for task, count in contributions.items()]
        text = ", ".join(parts[:8]) + (", ..." if len(parts) > 8 else "")
        dropped = result.get("stale_gradients_dropped") or 0
        if dropped:
            text += f"; {plural_text(dropped, 'stale gradient')} dropped and dealt again"
        lines.append(Line("contributed", text))
    return tuple(lines)


def closing_columns(
    result: Mapping[str, Any], history: Mapping[int, EpochFacts]
) -> tuple[tuple[str, Mapping[str, float]], ...]:
    """Return the columns of the closing table: last epoch, best epoch, final weights.

    Args:
        result: The content of result.json.
        history: Epochs by number, as far as this process saw them.

    Returns:
        Pairs of a heading and metrics; empty if no epoch ended.
    """
    last = {k: v for k, v in (result.get("metrics") or {}).items() if v is not None}
    best = result.get("best") or {}
    best_epoch = best.get("epoch")
    last_epoch = max(history, default=None)
    columns = []
    if last:
        where = ""
        if last_epoch is not None:
            where = f" ({last_epoch}{', partial' if history[last_epoch].is_partial else ''})"
        columns.append((f"last epoch{where}", last))
    if best_epoch is not None and best_epoch != last_epoch:
        seen = history.get(best_epoch)
        metrics = {best["monitor"]: best["value"]} if seen is None else seen.metrics
        columns.append((f"best epoch ({best_epoch}, by {best['monitor']})", metrics))
    elif best_epoch is not None and columns:
        columns[0] = (f"last and best epoch ({last_epoch}, by {best['monitor']})", last)
    final = {k: v for k, v in (result.get("final_metrics") or {}).items() if v is not None}
    if final:
        columns.append(("final weights", final))
    return tuple(columns)
