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


@pytest.mark.parametrize("is_masked", [True, False])
def test_synchronized_normalization_of_masked_rows_is_told(is_masked):
    """Keras adds nothing up over replicas where it is given a mask."""

    def build():
        embedding = L.Embedding(4, 3, mask_zero=is_masked)
        layers = [embedding, L.BatchNormalization(synchronized=True), L.Flatten(), L.Dense(1)]
        model = keras.Sequential([keras.Input((2,), dtype="int32"), *layers])
        model.compile("sgd", "mse")
        return model

    x = np.array([[1, 0], [2, 3]] * 4, np.int32)
    prepared = prepare(build, {"train": (x, ROWS["train"][1])}, replicas=2)
    assert any("has a mask" in note for note in prepared.engine.notes) == is_masked
    assert all("call" not in vars(layer) for layer in prepared.model.layers)
