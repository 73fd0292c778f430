"""The built-in models: any input shape, probabilities out, trainable on the default data."""

import keras
import numpy as np
import pytest

from kdist.datasets import digits
from kdist.models import cnn, mlp


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (mlp, (8, 8, 1)),
        (mlp, (28, 28)),
        (mlp, (64,)),
        (cnn, (8, 8, 1)),
        (cnn, (28, 28, 1)),
        (cnn, (32, 32, 3)),
    ],
)
def test_probabilities_for_any_input(build, shape):
    model = build(num_classes=7)
    assert not model.built
    assert not model.compiled
    found = keras.ops.convert_to_numpy(
        model(np.random.default_rng(0).random((3, *shape), "float32"))
    )
    assert found.shape == (3, 7)
    assert np.allclose(found.sum(axis=1), 1, atol=1e-6)


def test_options_shape_the_model():
    model = mlp(num_classes=3, units=5, layers=3, dropout=0.5, activation="tanh")
    model.build((None, 4))
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds == ["Flatten", *["Dense", "Dropout"] * 3, "Dense"]
    assert [w.shape for w in model.weights[::2]] == [(4, 5), (5, 5), (5, 5), (5, 3)]
    assert model.layers[1].activation is keras.activations.tanh
    assert [type(layer).__name__ for layer in mlp(layers=0).layers] == ["Flatten", "Dense"]
    model = cnn(filters=(4, 6, 8), dropout=0)
    model.build((None, 8, 8, 1))
    assert [w.shape[-1] for w in model.weights[::2]] == [4, 6, 8, 10]
    assert not any(isinstance(layer, keras.layers.Dropout) for layer in model.layers)


def test_outputs_stay_float32_under_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        for build in (mlp, cnn):
            assert build()(np.zeros((1, 8, 8, 1), "float32")).dtype == "float32"
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize(("build", "epochs"), [(mlp, 12), (cnn, 8)])
def test_digits_are_learned(build, epochs):
    keras.utils.set_random_seed(0)
    parts = digits()
    model = build()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(*parts["train"], batch_size=64, epochs=epochs, verbose=0)
    _, accuracy = model.evaluate(*parts["validation"], verbose=0)
    assert accuracy >= 0.95


@pytest.mark.parametrize("build", [mlp, cnn])
def test_the_saved_model_opens(build, tmp_path):
    model = build()
    x = np.random.default_rng(0).random((2, 8, 8, 1), "float32")
    expected = model(x)
    model.save(tmp_path / "model.keras")
    assert np.allclose(keras.saving.load_model(tmp_path / "model.keras")(x), expected)
