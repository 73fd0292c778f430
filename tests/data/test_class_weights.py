"""Class weights equal Keras', multiply given sample weights, and are refused by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.data import DataSettings, make_source
from kdist.errors import ConfigError

from .conftest import read

WEIGHTS = {0: 0.5, 2: 3.0}
LABELS = np.array([0, 1, 2, 2, 0, 1])
EXPECTED = [0.5, 1, 3, 3, 0.5, 1]
X = np.arange(12, dtype="float32").reshape(6, 2)


def as_stream(x, y, *weights):
    return tf.data.Dataset.from_tensor_slices((x, y, *weights))


@pytest.mark.parametrize("cache_bytes", [1 << 20, 0])
@pytest.mark.parametrize("as_dataset", [False, True])
@pytest.mark.parametrize(
    "y",
    [LABELS, LABELS[:, None], LABELS.astype("float32"), np.eye(3, dtype="float32")[LABELS]],
    ids=["sparse", "column", "float", "one_hot"],
)
@pytest.mark.parametrize("given", [None, np.array([1, 2, 3, 4, 5, 6.0])], ids=["plain", "given"])
def test_weights_of_rows(y, given, as_dataset, cache_bytes):
    arrays = (X, y) if given is None else (X, y, given)
    source = make_source(
        as_stream(*arrays) if as_dataset else arrays,
        settings=DataSettings(batch_size=6, shuffle=False, cache_bytes=cache_bytes),
        class_weight=WEIGHTS,
    )
    (element,) = read(source, 1)
    expected = np.array(EXPECTED) * (1 if given is None else given)
    assert element[2].dtype == np.float32
    assert np.allclose(element[2], expected)
    assert np.allclose(source.first_batch(6)[2], expected)


def test_given_weights_keep_their_shape():
    weights = np.ones((6, 2), "float32")
    source = make_source((X, LABELS, weights), settings=DataSettings(), class_weight=WEIGHTS)
    assert np.allclose(source.arrays[2], np.array(EXPECTED)[:, None] * weights)


def test_training_equals_keras_class_weight():
    source = make_source(
        (X, LABELS), settings=DataSettings(batch_size=6, shuffle=False), class_weight=WEIGHTS
    )
    x, y, sample_weight = source.first_batch(6)
    weights = []
    for options in ({"class_weight": WEIGHTS}, {"sample_weight": sample_weight}):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(x, y, epochs=2, verbose=0, **options)
        weights.append(model.layers[0].get_weights())
    for a, b in zip(*weights, strict=True):
        assert np.allclose(a, b, atol=1e-7)


@pytest.mark.parametrize(
    ("y", "class_weight", "message"),
    [
        ({"a": LABELS, "b": LABELS}, WEIGHTS, "single output.*2 outputs"),
        (None, WEIGHTS, "no labels"),
        (np.zeros((6, 4, 4)), WEIGHTS, r"one label a row.*, 4, 4\)"),
        (LABELS, {"a": 1.0}, "map class indices"),
        (LABELS, {0: "heavy"}, "map class indices"),
        (LABELS, [1.0, 2.0], "map class indices"),
    ],
)
@pytest.mark.parametrize("as_dataset", [False, True])
def test_refused(y, class_weight, message, as_dataset):
    part = (X, y)
    if as_dataset:
        part = tf.data.Dataset.from_tensor_slices((X,) if y is None else (X, y))
    with pytest.raises(ConfigError, match=message):
        make_source(part, settings=DataSettings(), class_weight=class_weight)
