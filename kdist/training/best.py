"""Which epoch was best: the one rule that reports, result.json and plots share."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Words that mark a metric of which more is better; anything else (losses, errors) is minimised.
_MORE_IS_BETTER = re.compile(
    r"(^|_)(acc|accuracy|auc|precision|recall|sensitivity|specificity|f\d|fbeta|iou|io_u|dice"
    r"|r2|bleu|rouge|map|ndcg|mrr|hits?|true_positives|true_negatives|cosine_similarity|score)(_|$)"
)
_LESS_IS_BETTER = re.compile(r"(loss|error|perplexity|entropy|divergence|false_)")
_DEFAULTS = ("val_loss", "loss")


def more_is_better(metric: str) -> bool:
    """Return whether a larger value of `metric` (any `val_` or output prefix) is the better one."""
    name = metric.lower().removeprefix("val_")
    return bool(_MORE_IS_BETTER.search(name)) and not _LESS_IS_BETTER.search(name)


def best_of(
    rows: Iterable[Mapping[str, Any]], monitor: str | None = None, mode: str = "auto"
) -> dict[str, Any] | None:
    """Return the best epoch as result.json states it.

    Args:
        rows: One mapping an epoch, with `epoch` and the metrics, as metrics.csv has them.
        monitor: The metric to go by; by default `val_loss`, or `loss` without validation.
        mode: "min", "max", or "auto", which goes by the monitor's name.

    Returns:
        `{"monitor": ..., "value": ..., "epoch": ...}`, the earliest of equals; `None` if no row
        has a finite value of the monitor.
    """
    all_rows = list(rows)
    names = (monitor,) if monitor is not None else _DEFAULTS
    for name in names:
        is_more_better = more_is_better(name) if mode == "auto" else mode == "max"
        sign = -1.0 if is_more_better else 1.0
        finite = [row for row in all_rows if _is_finite(row.get(name))]
        if finite:
            row = min(finite, key=lambda row: (sign * row[name], row["epoch"]))
            return {"monitor": name, "value": float(row[name]), "epoch": int(row["epoch"])}
    return None


def doubt_about_monitor(
    monitor: str | None, metrics: Iterable[str], *, has_validation: bool
) -> str | None:
    """Return a warning if an epoch has nothing that "best" could go by; `None` if all is well.

    Args:
        monitor: What the user chose (`checkpoint.monitor`), if anything.
        metrics: The names of the epoch's metrics.
        has_validation: Whether some epochs are validated; one that was not says nothing about
            `val_` metrics.
    """
    names = sorted(metrics)
    is_open = has_validation and not any(name.startswith("val_") for name in names)
    wanted = _DEFAULTS if monitor is None else (monitor,)
    if any(name in names or (is_open and name.startswith("val_")) for name in wanted):
        return None
    received = "" if monitor is None else f" checkpoint.monitor={monitor};"
    return (
        f"No epoch counts as the best one. Received:{received} an epoch with the metrics "
        f"{', '.join(names) or 'none'}. Set checkpoint.monitor to one of them."
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
