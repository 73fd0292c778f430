"""A model that tells how many rows its training was traced for."""

import keras
import numpy as np
import pytest

# What workers of parameter servers know, of as many rows in batches of twelve.
on_servers = pytest.mark.parametrize(
    ("num_rows", "update", "known"), [(24, "async", 12), (20, "async", None), (24, "sync", 6)]
)


class RowsTraced(keras.layers.Layer):
    """Passes its input on; keeps the rows that it has seen at training, `None` for any number."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def call(self, x, training=False):
        if training:
            self.seen.add(x.shape[0])
        return x


def traced_rows(train, num_rows, **options):
    """Train an epoch in batches of twelve; return the rows that the last traces knew of."""
    layer = RowsTraced()

    def build():
        layers = [keras.Input((3,)), layer, keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(num_rows, 3)).astype("float32"), np.ones((num_rows, 1), "float32")
    train(build, {"train": (x, y)}, epochs=1, batch_size=12, **options)
    return layer.seen


def assert_workers_know(train, num_rows, update, known):
    """Train on two workers; a case of `on_servers`."""
    seen = traced_rows(train, num_rows, workers=2, strategy={"update": update})
    assert known in seen
    assert seen <= {None, known}
