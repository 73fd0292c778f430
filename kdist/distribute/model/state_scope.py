"""The scope that a step is traced in: variables are inputs, what the step writes are outputs."""

from typing import Any

import keras
import tensorflow as tf


class StateScope(keras.StatelessScope):
    """A `keras.StatelessScope` in which gradients end at what a layer writes.

    In `fit` on TensorFlow a layer that reads a variable which it has written reads a constant. The
    plain scope would answer with the tensor that was written, and gradients would flow on into the
    rows that it came from.
    """

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Take the new value of a variable."""
        variable, value = update
        super().add_update((variable, tf.stop_gradient(value)))
