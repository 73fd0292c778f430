"""y = slope * x + intercept: the smallest model there is, and a worker's log of what it reads."""

import keras
import numpy as np
import tensorflow as tf

from kdist.datasets.splits import held_out


def make_data(
    num_examples: int = 2000,
    slope: float = 3.0,
    intercept: float = 2.0,
    noise: float = 0.1,
    generator_seed: int = 0,
) -> dict:
    """Return points near a line, a fifth of them for validation."""
    random = np.random.default_rng(generator_seed)
    x = random.uniform(-1, 1, (num_examples, 1)).astype(np.float32)
    y = slope * x + intercept + noise * random.standard_normal(x.shape)
    return held_out((x, y.astype(np.float32)), 0.2, generator_seed)


def build_model() -> keras.Model:
    """Return a line through the origin, not compiled."""
    return keras.Sequential([LoggedLine(name="line")])


@keras.saving.register_keras_serializable("experiments")
class LoggedLine(keras.layers.Layer):
    """w * x + b. Whoever computes a training step prints time, w and b to its own log."""

    def build(self, input_shape: tuple) -> None:
        """Make the two parameters."""
        del input_shape
        self.w = self.add_weight(name="w", shape=(), initializer="zeros")
        self.b = self.add_weight(name="b", shape=(), initializer="zeros")

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Return the line at `x`."""
        w, b = tf.convert_to_tensor(self.w), tf.convert_to_tensor(self.b)
        if training:
            tf.print("step", tf.timestamp(), "w", w, "b", b, summarize=-1)
        return w * x + b
