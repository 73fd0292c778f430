"""Random layers draw from the seed and the step: reproducible, and another mask every step."""

import keras
import numpy as np

NUM_STEPS = 12


class Masks(keras.metrics.Metric):
    """Adds up the output rows of each step; a row's label is its step."""

    def __init__(self, name="masks"):
        super().__init__(name=name)
        self.rows = self.add_weight(shape=(NUM_STEPS, 16), initializer="zeros", name="rows")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = keras.ops.reshape(keras.ops.cast(y_true, "int32"), (-1,))
        steps = keras.ops.one_hot(labels, NUM_STEPS)
        self.rows.assign_add(keras.ops.matmul(keras.ops.transpose(steps), y_pred))

    def result(self):
        return keras.ops.sum(self.rows)


def masks_of(cluster, *, seed=1, workers=1, steps_per_execution=1):
    """Return the sums of dropped ones, by step; nothing is learned."""

    def build():
        model = keras.Sequential(
            [
                keras.Input((16,)),
                keras.layers.Dropout(0.5, seed=seed),
                keras.layers.Dense(16, use_bias=False, kernel_initializer="identity"),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.0),
            loss=lambda y_true, y_pred: keras.ops.sum(y_pred, axis=-1),
            metrics=[Masks()],
        )
        return model

    x = np.ones((NUM_STEPS * 8, 16), "float32")
    steps = np.repeat(np.arange(NUM_STEPS), 8).astype("int32")
    run = cluster.train(
        build,
        {"train": (x, steps)},
        workers=workers,
        epochs=1,
        steps_per_execution=steps_per_execution,
    )
    variables = [v for metric in run.model.metrics for v in metric.variables]
    return next(v for v in variables if v.path.endswith("rows")).numpy()


def test_masks(cluster):
    """The same from run to run and on any worker; another one each step and for another seed."""
    masks = masks_of(cluster)
    assert set(np.unique(masks)) <= set(np.arange(0.0, 17.0, 2.0))
    assert len({row.tobytes() for row in masks}) == NUM_STEPS
    np.testing.assert_array_equal(masks, masks_of(cluster, workers=3, steps_per_execution=5))
    assert not np.array_equal(masks, masks_of(cluster, seed=2))
