"""What the panel is told of a model's layers."""

import keras
import numpy as np
import pytest

from .harness import prepare

L = keras.layers
ROWS = {"train": (np.ones([8, 3], np.float32), np.ones([8, 1], np.float32))}


class Frozen(L.Layer):
    """A base model that is called as in inference, as transfer learning does."""

    def __init__(self):
        super().__init__()
        self.norm = L.BatchNormalization()

    def call(self, x):
        return self.norm(x, training=False)


@pytest.mark.parametrize(
    ("make", "replicas", "is_noted"),
    [
        (L.BatchNormalization, 2, True),
        (L.BatchNormalization, 1, False),
        (lambda: L.BatchNormalization(synchronized=True), 2, False),
        (lambda: L.BatchNormalization(trainable=False), 2, False),
        (Frozen, 2, False),
    ],
    ids=["by replica", "one replica", "synchronized", "not trainable", "called as in inference"],
)
def test_rows_that_are_normalized_by_replica_are_told(make, replicas, is_noted):
    def build():
        model = keras.Sequential([keras.Input((3,)), make(), L.Dense(1)])
        model.compile("sgd", "mse")
        return model

    notes = prepare(build, ROWS, replicas=replicas).engine.notes
    assert any("normalizes each replica's rows" in note for note in notes) == is_noted
