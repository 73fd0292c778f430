"""Where the values of a hyperparameter stand on the axis of a picture. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kdist.config.space import BOOL, CHOICE, Hyperparameter

_LOG_FROM = 50.0
_LOG = "log"


@dataclass(frozen=True)
class Axis:
    """An axis of numbers, or of values that stand side by side.

    Attributes:
        labels: The values at 0, 1, 2, ...; `None` for an axis of numbers.
        is_log: Whether it is logarithmic.
        is_whole: Whether there is nothing between two whole numbers.
    """

    labels: tuple[str, ...] | None = None
    is_log: bool = False
    is_whole: bool = False

    def place_of(self, value: Any) -> float:
        """Return where a value stands."""
        return float(value) if self.labels is None else float(self.labels.index(str(value)))


def axis_of(values: Sequence[Any], entry: Hyperparameter | None) -> Axis:
    """Return the axis of a hyperparameter.

    Args:
        values: Those that trials have.
        entry: What the space says of it; `None` for one of a hypermodel.
    """
    if entry is not None and entry.type in (CHOICE, BOOL):
        return Axis(labels=_labels([*entry.extremes, *values]))
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return Axis(labels=_labels(values))
    is_whole = all(isinstance(value, int) for value in values)
    if entry is None:
        return Axis(is_log=spans_decades(values), is_whole=is_whole)
    return Axis(is_log=entry.sampling == _LOG, is_whole=is_whole)


def spans_decades(values: Sequence[float]) -> bool:
    """Return whether numbers can only be told apart on a logarithmic axis."""
    return bool(values) and 0 < min(values) * _LOG_FROM < max(values)


def _labels(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(value) for value in values))
