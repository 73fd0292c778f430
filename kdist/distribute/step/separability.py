"""Whether losses and metrics of a batch are sums over its rows: checked on the first rows.

A loss that is not (Dice over the batch, say) cannot be split over replicas; a metric that is not
(a maximum, say) cannot be added up over batches. Both are found by comparing a whole with halves.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.valueless_tables import answering_for_tables
from kdist.distribute.model.structure import MetricSlots, ModelStructure, call_model
from kdist.errors import ConfigError

TOLERANCE = 1e-4


def check_separable(
    structure: ModelStructure,
    x: Any,
    y: Any,
    sample_weight: Any,
    y_pred: Any,
    *,
    splits_batches: bool,
    takes_any_rows: bool = True,
) -> None:
    """Compare losses and metrics of some rows with those of their halves.

    Args:
        structure: The analysed model.
        x: Inputs of some rows of training data.
        y: Their labels.
        sample_weight: Their weights, or `None`.
        y_pred: The model's outputs for them.
        splits_batches: Whether several replicas will share a batch.
        takes_any_rows: Whether the model can be called on a part of these rows.

    Raises:
        ConfigError: Naming the loss or metric that does not add up.
    """
    num_rows = int(keras.tree.flatten(y_pred)[0].shape[0])
    if num_rows < 2:
        return
    cut = num_rows // 2
    whole = (x, y, y_pred, sample_weight)
    halves = [_rows(whole, 0, cut), _rows(whole, cut, num_rows)]
    _check_metrics(structure, whole, halves)
    if splits_batches:
        _check_loss(structure, whole, halves, cut / num_rows)
        if takes_any_rows:
            _check_additional_losses(structure, whole, halves, cut / num_rows)
        elif _additional_losses(structure.model, x):
            raise ConfigError(
                "Whether what layers pass to add_loss (regularizers do, too) is a mean over rows "
                f"shows in parts of a batch, which {structure.model.name} does not take. Received: "
                "it with such losses on several replicas. Use strategy=single, or build the model "
                "for any number of rows."
            )


def _check_loss(structure: ModelStructure, whole: Any, halves: Sequence[Any], part: float) -> None:
    if any(term.denominator != "rows" for term in structure.terms):
        return
    total = _loss(structure.model, whole)
    split = part * _loss(structure.model, halves[0]) + (1 - part) * _loss(
        structure.model, halves[1]
    )
    if np.isfinite(total) and abs(total - split) > TOLERANCE * max(1.0, abs(total)):
        names = ", ".join(term.name for term in structure.terms) or "compute_loss"
        raise ConfigError(
            "The loss of a batch is not the mean of the losses of its parts, so a batch cannot be "
            f"split over replicas. Received: {names}: {total:.6g} for {len(halves) * 2} rows, "
            f"{split:.6g} from their halves. Use strategy=single or strategy=ps, or a loss that "
            "is a mean over rows."
        )


def _check_additional_losses(
    structure: ModelStructure, whole: Any, halves: Sequence[Any], part: float
) -> None:
    if structure.has_own_loss:
        return
    total, first, second = (_additional_losses(structure.model, r[0]) for r in (whole, *halves))
    split = part * first + (1 - part) * second
    if np.isfinite(total) and abs(total - split) > TOLERANCE * max(1.0, abs(total)):
        raise ConfigError(
            "What layers pass to add_loss (an activity_regularizer does, too) must be a mean over "
            f"rows, or a batch cannot be split over replicas. Received: {total:.6g} for some rows, "
            f"{split:.6g} from their halves. Use keras.ops.mean in add_loss, or strategy=single."
        )


def _additional_losses(model: keras.Model, x: Any) -> float:
    held = [v for v in model.variables if keras_adapter.has_value(v)]
    mapping = [(v, tf.convert_to_tensor(v.value)) for v in held]
    with answering_for_tables(model), keras.StatelessScope(mapping, collect_losses=True):
        call_model(model, x, training=False)
        losses = [np.asarray(keras.ops.convert_to_numpy(loss)) for loss in model.losses]
        return float(sum(loss.sum() for loss in losses))


def _loss(model: keras.Model, rows: Any) -> float:
    x, y, y_pred, sample_weight = rows
    with keras.StatelessScope():
        if keras_adapter.overrides_compute_loss(model):
            value = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        elif keras_adapter.has_compiled_loss(model):
            value = keras_adapter.call_compiled_loss(model, y, y_pred, sample_weight)
        else:
            return 0.0
    return float(np.sum(np.asarray(keras.ops.convert_to_numpy(value))))


def _check_metrics(structure: ModelStructure, whole: Any, halves: Sequence[Any]) -> None:
    total = _changes(structure, whole)
    parts = [_changes(structure, half) for half in halves]
    for slots, change, first, second in zip(structure.metrics, total, *parts, strict=True):
        for one, a, b in zip(change, first, second, strict=True):
            if not np.allclose(one, a + b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                raise ConfigError(
                    "The state of a metric must add up over rows. "
                    f"Received: {_name(slots)}, whose state over two halves of a batch "
                    "is not the state over the whole. Update its variables by adding to them; a "
                    "function returns one value for each row (axis=-1, not a mean over all)."
                )


def _name(slots: MetricSlots) -> str:
    inner = getattr(slots.metric, "metrics", None) or [slots.metric]
    names = [m.name for m in inner] if isinstance(inner, list) else [slots.metric.name]
    return ", ".join(names)


def _changes(structure: ModelStructure, rows: Any) -> list[list[np.ndarray]]:
    x, y, y_pred, sample_weight = rows
    mapping = [
        (variable, tf.constant(value))
        for slots in (*structure.trackers, *structure.metrics)
        for variable, value in zip(slots.variables, slots.reset_values, strict=True)
    ]
    with keras.StatelessScope(mapping) as scope:
        structure.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return [
        [
            np.asarray(scope.get_current_value(variable), np.float64)
            - np.asarray(value, np.float64)
            for variable, value in zip(slots.variables, slots.reset_values, strict=True)
        ]
        for slots in structure.metrics
    ]


def _rows(batch: Any, lo: int, hi: int) -> Any:
    def cut(leaf: Any) -> Any:
        if leaf is None:
            return None
        part = leaf[lo:hi]
        mask = keras_adapter.keras_mask(leaf)
        if mask is not None:
            keras_adapter.attach_mask(part, mask[lo:hi])
        return part

    return keras.tree.map_structure(cut, batch, none_is_leaf=True)
