"""What trials are compared by."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kdist.training.best import more_is_better


@dataclass(frozen=True)
class Objective:
    """A metric, and whether less or more of it is better."""

    name: str
    direction: str

    @classmethod
    def of(cls, name: str, direction: str | None) -> "Objective":
        """Return the objective; without a direction, the metric's name decides."""
        return cls(name, direction or ("max" if more_is_better(name) else "min"))

    def is_better(self, value: float, other: float) -> bool:
        """Return whether `value` is better than `other`."""
        return value > other if self.direction == "max" else value < other

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best finite value, if there is one."""
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None
        return max(finite) if self.direction == "max" else min(finite)
