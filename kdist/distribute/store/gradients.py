"""Gradients, dense or of rows, under a loss scale."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def all_finite(gradients: Sequence[Any]) -> tf.Tensor:
    """Return whether no gradient overflowed, a bool scalar."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(_dense(g))) for g in gradients])


def _dense(gradient: Any) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def divide(gradient: Any, scale: tf.Tensor) -> Any:
    """Return a dense or sparse gradient divided by a scalar."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values / tf.cast(scale, gradient.values.dtype),
            gradient.indices,
            gradient.dense_shape,
        )
    return gradient / tf.cast(scale, gradient.dtype)
