"""What goes into the compute of a step and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kdist.distribute.model.lookups import Lookups

NO_LOOKUPS = Lookups(())


class StepValues(NamedTuple):
    """Everything a forward pass reads, as tensors in the order of the structure's lists.

    `positions` belongs to looked-up tables, whose buckets hold the rows of this step only.
    """

    buckets: list[Any]
    float_states: list[Any]
    int_states: list[Any]
    seeds: list[Any]
    frozen: list[Any]
    positions: list[Any]


class Share(NamedTuple):
    """One replica's rows of a global batch and their weight in it.

    Attributes:
        x, y, sample_weight: Nests of tensors; `sample_weight` is `()` when there is none.
        num_rows: float32 scalar, rows of the global batch.
        row_ratio: float32 scalar, this share's part of the rows (0 for a share that has no vote).
        vote: float32 scalar, 1 if this share's rows count, 0 if another replica counts them.
        is_first: float32 scalar, 1 on replica 0.
        term_ratios: float32 [number of loss terms], this share's part of each denominator.
    """

    x: Any
    y: Any
    sample_weight: Any
    num_rows: Any
    row_ratio: Any
    vote: Any
    is_first: Any
    term_ratios: Any


class Contribution(NamedTuple):
    """What one share adds: gradients by bucket, aux (see `AuxLayout`), new integer states."""

    gradients: list[Any]
    aux: Any
    int_states: list[Any]


@dataclass(frozen=True)
class AuxLayout:
    """Places in the float32 vector that rides with the gradients.

    `[rows, loss total, trackers..., metrics..., float state changes...]`; everything before
    `num_logged` is added up over an epoch, the rest is added to the model's state.
    """

    tracker_shapes: tuple[tuple[int, ...], ...]
    metric_shapes: tuple[tuple[int, ...], ...]
    state_shapes: tuple[tuple[int, ...], ...]

    @property
    def num_logged(self) -> int:
        """Return the length of the part that an epoch adds up."""
        return 2 + len(self.tracker_shapes) * 2 + sum(map(_size, self.metric_shapes))

    @property
    def num_states(self) -> int:
        """Return the length of the part that changes the model's state."""
        return sum(map(_size, self.state_shapes))


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def none_if_empty(sample_weight: Any) -> Any:
    """Return `None` for the empty tuple that stands for "no sample weights" in a dataset."""
    return None if isinstance(sample_weight, tuple) and not sample_weight else sample_weight
