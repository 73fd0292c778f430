"""The losses of a model as terms, each with the denominator that its mean divides by.

Keras means a loss over the rows of the tensor that it sees. When a batch is split over replicas,
each share must be weighed by its part of the denominator instead: rows (all entries count), valid
entries (a mask), the sum of the sample weights (`mean_with_sample_weight`), or nothing (`sum`).
"""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute import keras_adapter

ROWS, VALID, WEIGHTS, NOTHING = "rows", "valid", "weights", "nothing"


@dataclass(frozen=True)
class LossTerm:
    """One compiled loss: `denominator` is ROWS, VALID, WEIGHTS or NOTHING.

    An unreduced loss (`reduction=None`) trains on its sum and is logged as its mean, as in Keras.
    """

    name: str
    denominator: str
    is_mean: bool
    is_unreduced: bool = False


def find_loss_terms(model: keras.Model, y_pred: Any) -> tuple[LossTerm, ...]:
    """Return the terms of a built, compiled model.

    Args:
        model: The model, built with its losses.
        y_pred: Its outputs on some rows; a mask on any output makes mean losses divide by the
            number of valid entries.
    """
    has_mask = any(
        keras_adapter.keras_mask(leaf) is not None for leaf in keras.tree.flatten(y_pred)
    )
    terms = []
    for entry in keras_adapter.loss_entries(model):
        reduction = getattr(entry.loss, "reduction", "sum_over_batch_size")
        if reduction in (None, "none", "sum"):
            terms.append(LossTerm(entry.name, NOTHING, False, is_unreduced=reduction != "sum"))
        elif reduction == "mean_with_sample_weight":
            terms.append(LossTerm(entry.name, WEIGHTS, True))
        else:
            terms.append(LossTerm(entry.name, VALID if has_mask else ROWS, True))
    return tuple(terms)


class DenominatorProbe:
    """Stands in for one loss and records its local denominator instead of a loss."""

    def __init__(self, term: LossTerm, found: list[tf.Tensor]):
        self.term = term
        self.found = found

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """Record this share's denominator, a float32 scalar."""
        mask = keras_adapter.keras_mask(y_pred)
        if self.term.denominator == VALID and mask is not None:
            value = tf.reduce_sum(tf.cast(mask, tf.float32))
        elif self.term.denominator == WEIGHTS and (sample_weight is not None or mask is not None):
            value = tf.reduce_sum(_merged_weight(sample_weight, mask))
        else:
            value = tf.cast(tf.shape(keras.tree.flatten(y_pred)[0])[0], tf.float32)
        self.found.append(value)
        return tf.zeros((), tf.float32)


def _merged_weight(sample_weight: Any, mask: Any) -> tf.Tensor:
    if sample_weight is None:
        return tf.cast(mask, tf.float32)
    weight = tf.cast(sample_weight, tf.float32)
    if mask is None:
        return weight
    mask = tf.cast(mask, tf.float32)
    if weight.shape.rank == mask.shape.rank - 1:
        weight = weight[..., tf.newaxis]
    elif mask.shape.rank == weight.shape.rank - 1:
        mask = mask[..., tf.newaxis]
    return weight * mask


class ScaledLoss:
    """Stands in for one loss: calls it, returns `value * ratio` and records that."""

    def __init__(
        self,
        loss: Any,
        *,
        ratio: tf.Tensor,
        undo: float,
        found: list[tf.Tensor],
        takes_mean: bool = False,
    ):
        self.loss = loss
        self.ratio = ratio
        self.undo = undo
        self.found = found
        self.takes_mean = takes_mean

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """Return this share's part of the loss on the global batch, a scalar."""
        value = self.loss(y_true, y_pred, sample_weight)
        if value.shape.rank != 0:
            value = tf.reduce_mean(value) if self.takes_mean else tf.reduce_sum(value)
        value = value * tf.cast(self.undo, value.dtype)
        value = value * tf.cast(self.ratio, value.dtype)
        self.found.append(value)
        return value
