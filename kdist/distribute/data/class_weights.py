"""Class weights as sample weights, with Keras' reading of labels."""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.errors import ConfigError


def check_class_weight(class_weight: Any, y: Any, key: str) -> None:
    """Refuse class weights that cannot be applied to these labels.

    Args:
        class_weight: What the user gave; a mapping from class index to weight.
        y: The labels, or their specs, with the batch axis; a nest where there are several.
        key: The part, such as `data.train`.

    Raises:
        ConfigError: If the mapping or the labels have another form.
    """
    is_mapping = isinstance(class_weight, Mapping)
    if not is_mapping or not all(
        isinstance(k, Integral) and isinstance(v, Real) for k, v in class_weight.items()
    ):
        raise ConfigError(
            "class_weight must map class indices to numbers, such as {0: 1.0, 1: 2.5}. "
            f"Received: {class_weight!r}."
        )
    if isinstance(y, dict | tuple):
        found = f"{len(y)} outputs" if y else "no labels"
        raise ConfigError(
            f"class_weight needs a model with a single output. Received: {found} in {key}. "
            "Give sample weights in the data instead."
        )
    if len(y.shape) > 2:
        raise ConfigError(
            f"class_weight needs one label a row. Received: labels of shape {tuple(y.shape)} in "
            f"{key}. Give sample weights in the data instead."
        )


def class_weight_rows(y: np.ndarray, class_weight: Mapping[int, float]) -> np.ndarray:
    """Return the weight of each row; a class without a weight counts 1.

    Args:
        y: Labels of shape `(n,)` or `(n, 1)`, or one-hot or probabilities of shape `(n, c)`.
        class_weight: Class index to weight.
    """
    if y.ndim > 1:
        y = np.argmax(y, axis=-1) if y.shape[-1] != 1 else np.squeeze(y, axis=-1)
    classes, where = np.unique(np.round(y).astype("int64"), return_inverse=True)
    weights = np.array([class_weight.get(int(c), 1.0) for c in classes], keras.config.floatx())
    return weights[where.reshape(-1)]


def class_weight_rows_op(y: Any, class_weight: Mapping[int, float]) -> Any:
    """Return `class_weight_rows` of a tensor of labels."""
    if y.shape.rank is not None and y.shape.rank > 1:
        y = tf.argmax(y, axis=-1) if y.shape[-1] != 1 else tf.squeeze(y, axis=-1)
    labels = tf.cast(tf.round(y) if y.dtype.is_floating else y, tf.int64)
    classes = tf.constant(list(class_weight), tf.int64)
    weights = tf.constant(list(class_weight.values()), keras.config.floatx())
    matches = tf.cast(labels[:, None] == classes[None, :], weights.dtype)
    return tf.reduce_sum(matches * (weights - 1), axis=1) + 1


def combined(weights: Any, sample_weight: Any) -> Any:
    """Return the class weights times the given sample weights, where there are any.

    Works on numpy arrays and on tensors; `sample_weight` is `()` when there is none.
    """
    if isinstance(sample_weight, tuple):
        return weights
    rank = len(sample_weight.shape)
    if rank == 1:
        return weights * sample_weight
    shape = (-1,) + (1,) * (rank - 1)
    if isinstance(sample_weight, np.ndarray):
        return weights.reshape(shape) * sample_weight
    return tf.reshape(weights, shape) * sample_weight
