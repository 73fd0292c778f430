"""From the sums of an epoch to the logs that Keras would show."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from kdist.distribute.model.step_types import AuxLayout
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.values import write

# The name of an epoch's summed changes in a checkpoint, alike in all modes that sum them up.
SUMS = "sums"


class EpochLogs:
    """Turns summed changes (float64 `[num_logged]`) into named results, in Keras' order."""

    def __init__(self, structure: ModelStructure, aux: AuxLayout):
        """Remember what stands where in the vector."""
        self._structure = structure
        self._aux = aux

    def results(self, sums: np.ndarray) -> dict[str, float]:
        """Return loss and metrics of the summed batches.

        The metric objects of the model are left holding the summed state, as after `fit`.
        """
        structure = self._structure
        loss = _mean(sums[1], sums[0])
        trackers: dict[int, float] = {id(structure.trackers[0].metric): loss}
        _set_mean(structure.trackers[0].metric, sums[1], sums[0])
        offset = 2
        for slots in structure.trackers[1:]:
            trackers[id(slots.metric)] = _mean(sums[offset], sums[offset + 1])
            _set_mean(slots.metric, sums[offset], sums[offset + 1])
            offset += 2
        for slots in structure.metrics:
            for variable, reset in zip(slots.variables, slots.reset_values, strict=True):
                size = int(np.prod(variable.shape, dtype=np.int64))
                change = sums[offset : offset + size].reshape(variable.shape)
                value = reset + change
                if np.issubdtype(np.asarray(reset).dtype, np.integer):
                    value = np.rint(value)
                variable.assign(value.astype(np.asarray(reset).dtype))
                offset += size
        logs = {"loss": loss}
        logs.update(scalars(structure.model.get_metrics_result()))
        return logs

    @staticmethod
    def num_examples(sums: np.ndarray) -> int:
        """Return the exact number of rows behind the sums."""
        return round(float(sums[0]))

    def is_empty(self, sums: np.ndarray) -> bool:
        """Return whether no batch was counted yet."""
        return sums[0] == 0


def restored(variable: Any, sums: Mapping[str, np.ndarray]) -> bool:
    """Write captured sums into the variable that holds an epoch's; return whether they fit."""
    value = sums.get(SUMS)
    if value is None or value.shape != tuple(variable.shape):
        return False
    write(variable, value)
    return True


def _mean(total: float, count: float) -> float:
    return float(total / count) if count else float("nan")


def _set_mean(metric: keras.metrics.Metric, total: float, count: float) -> None:
    total_variable, count_variable = metric.variables
    total_variable.assign(total)
    count_variable.assign(count)


def scalars(results: Mapping[str, object]) -> dict[str, float]:
    """Return results as floats; a metric with several values becomes name_0, name_1, ..."""
    flat: dict[str, float] = {}
    for name, value in results.items():
        if isinstance(value, Mapping):
            flat.update(scalars(value))
            continue
        array = np.asarray(keras.ops.convert_to_numpy(value), dtype=np.float64)
        if array.size == 1:
            flat[name] = float(array.item())
        else:
            flat.update({f"{name}_{i}": float(v) for i, v in enumerate(array.ravel())})
    return flat
