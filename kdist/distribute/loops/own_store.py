"""What stands in for a parameter store and its logs where a model brings its own `train_step`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kdist.distribute.buckets.spilled import KeptTable
from kdist.distribute.loops.evaluation import scalars
from kdist.distribute.store.further_optimizers import FurtherOptimizers
from kdist.distribute.store.optimizer import StoreOptimizer
from kdist.distribute.store.replicated_store import to_numpy


@dataclass(frozen=True, kw_only=True)
class OwnSums:
    """What the model's own metrics say, and the rows behind them."""

    num_rows: int
    logs: Mapping[str, Any]


class OwnLogs:
    """Reads results that `train_step` and `test_step` return; see `EpochLogs`."""

    @staticmethod
    def results(sums: OwnSums) -> dict[str, float]:
        """Return the logs as floats."""
        return scalars(sums.logs)

    @staticmethod
    def num_examples(sums: OwnSums) -> int:
        """Return the rows trained."""
        return sums.num_rows

    @staticmethod
    def is_empty(sums: OwnSums) -> bool:
        """Return whether no batch was counted yet."""
        return not sums.num_rows


class OwnStore:
    """The model's own variables and optimizer, in the place of a parameter store."""

    def __init__(self, model: keras.Model, optimizer: StoreOptimizer):
        """Hold a built model and the wrapping of its optimizer."""
        self._model = model
        self._optimizer = optimizer
        self.further = FurtherOptimizers(model)
        self._seen: list[np.ndarray] | None = None

    @property
    def kept_tables(self) -> list[KeptTable]:
        """Return nothing: the model holds all of its values."""
        return []

    def write_to_model(self) -> None:
        """Remember the weights; the model holds them already."""
        self._seen = [to_numpy(v) for v in self._model.variables]

    def write_states_to_model(self) -> None:
        """The model holds them already."""

    def read_from_model(self) -> bool:
        """Return whether somebody wrote into the model since `write_to_model`."""
        if self._seen is None:  # A checkpoint's values come before anybody has asked for any.
            return True
        now = [to_numpy(v) for v in self._model.variables]
        return any(
            not np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            for a, b in zip(self._seen, now, strict=True)
        )

    def take_from_chief(self, *, with_optimizer: bool = False) -> None:
        """One process trains; there is nobody to follow."""

    @property
    def num_updates(self) -> int:
        """Return the updates that all of the model's optimizers count."""
        return self._optimizer.num_updates + self.further.num_updates

    @property
    def optimizers(self) -> list[StoreOptimizer]:
        """Return the model's own optimizer."""
        return [self._optimizer]
