"""Models and metrics whose results are exact, whatever the order of asynchronous steps."""

import keras
import numpy as np

BATCH_SIZE = 8


class RowsSeen(keras.metrics.Metric):
    """Counts how often each row was seen; a row's label is its number."""

    def __init__(self, num_rows: int, name: str = "seen"):
        super().__init__(name=name)
        self.num_rows = num_rows
        self.counts = self.add_weight(shape=(num_rows,), initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        ids = keras.ops.reshape(keras.ops.cast(y_true, "int32"), (-1,))
        self.counts.assign_add(keras.ops.sum(keras.ops.one_hot(ids, self.num_rows), axis=0))

    def result(self):
        return keras.ops.sum(self.counts)


class Slow(keras.layers.Layer):
    """Adds zero after work that nobody can leave out."""

    def call(self, inputs):
        square = keras.ops.square(keras.ops.tile(inputs[:1, :1], (600, 600)))
        work = keras.ops.sum(keras.ops.matmul(keras.ops.matmul(square, square), square))
        return inputs + keras.ops.stop_gradient(keras.ops.minimum(work, 0.0))


def constant_gradient(optimizer, *, num_rows: int, units: int = 4, is_slow: bool = False):
    """Return a builder: all gradients are 1, and of two servers each holds one variable."""

    def build():
        layers = [keras.Input((3,)), *([Slow()] if is_slow else [])]
        model = keras.Sequential([*layers, keras.layers.Dense(units, bias_initializer="normal")])
        model.compile(
            optimizer(),
            loss=lambda y_true, y_pred: keras.ops.sum(y_pred, axis=-1),
            metrics=[RowsSeen(num_rows)],
        )
        return model

    return build


def numbered_rows(num_rows: int):
    """Return ones, labelled with their number."""
    return np.ones((num_rows, 3), "float32"), np.arange(num_rows).astype("int32")


def after_constant_steps(weights, optimizer, num_steps: int):
    """Return what plain Keras makes of `weights`, one step after the other, all gradients 1."""
    variables = [keras.Variable(value) for value in weights]
    optimizer.build(variables)
    for _ in range(num_steps):
        optimizer.apply([keras.ops.ones_like(v) for v in variables], variables)
    return [v.numpy() for v in variables]


def seen_counts(model):
    """Return how often each row was seen since the last epoch or validation began."""
    variables = [v for metric in model.metrics for v in metric.variables]
    return next(v for v in variables if v.path.endswith("counts")).numpy()
