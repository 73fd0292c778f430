"""Random layers: reproducible by seed, other draws on every replica and every step."""

import keras
import numpy as np
import pytest

from .cases import LOGITS, ROWS, L, X, Y, adam
from .harness import assert_same, fit, train


def dropping():
    def build():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                L.Dense(16, activation="relu"),
                L.Dropout(0.4),
                L.GaussianNoise(0.1),
                L.Dense(3),
            ]
        )
        model.compile(adam(), loss=LOGITS)
        return model

    return build


def test_one_replica_draws_the_sequence_of_keras():
    reference = fit(dropping(), ROWS)
    for steps_per_execution in (1, 2):
        outcome = train(dropping(), ROWS, steps_per_execution=steps_per_execution)
        assert_same(outcome, reference)


def recurrent():
    layers = [keras.Input((6,)), L.Reshape((3, 2)), L.GRU(4, dropout=0.4), L.Dense(3)]
    model = keras.Sequential(layers)
    model.compile(adam(), loss=LOGITS)
    return model


def test_recurrent_layers_begin_with_the_first_mask():
    """They draw one whenever they are called, to be built, too."""
    data = {"train": ROWS["train"]}  # And Keras' validation draws some.
    assert_same(train(recurrent, data), fit(recurrent, data))


@pytest.mark.parametrize(("replicas", "jit_compile"), [(2, False), (1, True)])
def test_same_seed_same_weights_other_seed_other_weights(replicas, jit_compile):
    options = {"replicas": replicas, "jit_compile": jit_compile}
    first, again = (train(dropping(), ROWS, **options) for _ in range(2))
    for a, b in zip(first.weights, again.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def minus_mean(y, y_pred):
    return -keras.ops.mean(y_pred, axis=-1)


def mask_recorder():
    """Return a model whose gradient with respect to `scale` shows the mask of each row."""

    class RowMask(keras.Model):
        def __init__(self):
            super().__init__()
            self.dropout = L.Dropout(0.5)
            self.scale = self.add_weight(shape=(2, 20), initializer="ones", name="scale")

        def call(self, x, training=False):
            kept = self.dropout(keras.ops.ones((1, 1, 20)), training=training)
            # Row i reaches only its own part of `scale`: replica 0 the first, replica 1 the second.
            return keras.ops.sum(x * kept * self.scale, axis=(1, 2))[:, None]

    model = RowMask()
    model.compile(keras.optimizers.SGD(1.0), loss=minus_mean)
    return model


def test_masks_differ_between_replicas_and_between_steps():
    x = np.zeros((2, 2, 20), "float32")
    x[0, 0] = x[1, 1] = 1
    data = {"train": (x, np.zeros((2, 1), "float32"))}
    steps = []
    for epochs in (1, 2):
        outcome = train(mask_recorder, data, replicas=2, batch_size=2, epochs=epochs)
        steps.append(np.round(outcome.weights[0] - 1, 4))
    first, second = steps[0], steps[1] - steps[0]
    assert set(np.unique(first)) <= {0.0, 1.0}
    assert not np.array_equal(first[0], first[1]), "both replicas drew one mask"
    assert not np.array_equal(first, second), "two steps drew one mask"


def test_shuffled_order_is_the_same_with_any_number_of_replicas():
    def plain():
        model = keras.Sequential([keras.Input((6,)), L.Dense(3)])
        model.compile(adam(), loss=LOGITS)
        return model

    single = train(plain, {"train": (X, Y)}, shuffle=True)
    mirrored = train(plain, {"train": (X, Y)}, shuffle=True, replicas=3)
    assert_same(mirrored, single)
