"""The models and the data that every side trains. The same text for Keras 3 and for tf_keras."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray]

_NUM_ROWS = 2048


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One model with its data.

    Attributes:
        build: Builds the model from a Keras module, not compiled.
        make_arrays: Makes the training rows, `(x, y)`.
        num_classes: Classes of the labels; 1 stands for a binary logit.
        step_share: How many steps to time, as a part of what the dense model takes.
    """

    build: Callable[[ModuleType], Any]
    make_arrays: Callable[[], Arrays]
    num_classes: int
    step_share: float = 1.0


def compiled(keras: ModuleType, workload: str, **compile_options: Any) -> Any:
    """Return the named workload's model, compiled with Adam and accuracy."""
    chosen = WORKLOADS[workload]
    model = chosen.build(keras)
    if chosen.num_classes == 1:
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        metrics = [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)]
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = ["accuracy"]
    optimizer = keras.optimizers.Adam(1e-3)
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics, **compile_options)
    return model


def _dense(keras: ModuleType) -> Any:
    layers = keras.layers
    hidden = [layers.Dense(64, activation="relu") for _ in range(20)]
    return keras.Sequential([keras.Input((64,)), *hidden, layers.Dense(4)])


def _cnn(keras: ModuleType) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def _lstm(keras: ModuleType) -> Any:
    layers = keras.layers
    return keras.Sequential([keras.Input((20, 16)), layers.LSTM(32), layers.Dense(4)])


def _embedding(keras: ModuleType) -> Any:
    layers = keras.layers
    ids = keras.Input((8,), dtype="int32")
    rows = layers.Flatten()(layers.Embedding(100_000, 64)(ids))
    hidden = layers.Dense(64, activation="relu")(rows)
    return keras.Model(ids, layers.Dense(1)(hidden))


def _large(keras: ModuleType) -> Any:
    layers = keras.layers
    return keras.Sequential([keras.Input((10_000,)), layers.Dense(9_999), layers.Dense(4)])


def _floats(*shape: int, num_classes: int) -> Callable[[], Arrays]:
    def make() -> Arrays:
        generator = np.random.default_rng(0)
        x = generator.normal(size=shape).astype("float32")
        weights = generator.normal(size=(int(np.prod(shape[1:])), num_classes))
        return x, (x.reshape(shape[0], -1) @ weights).argmax(axis=1).astype("int32")

    return make


def _ids() -> Arrays:
    generator = np.random.default_rng(0)
    ids = (generator.zipf(1.2, size=(_NUM_ROWS, 8)) % 100_000).astype("int32")
    return ids, generator.integers(0, 2, size=(_NUM_ROWS, 1)).astype("float32")


WORKLOADS: Mapping[str, Workload] = {
    "dense": Workload(
        build=_dense, make_arrays=_floats(_NUM_ROWS, 64, num_classes=4), num_classes=4
    ),
    "cnn": Workload(
        build=_cnn,
        make_arrays=_floats(_NUM_ROWS, 16, 16, 1, num_classes=10),
        num_classes=10,
        step_share=0.5,
    ),
    "lstm": Workload(
        build=_lstm,
        make_arrays=_floats(_NUM_ROWS, 20, 16, num_classes=4),
        num_classes=4,
        step_share=0.5,
    ),
    "embedding": Workload(build=_embedding, make_arrays=_ids, num_classes=1, step_share=0.2),
    "large": Workload(
        build=_large,
        make_arrays=_floats(256, 10_000, num_classes=4),
        num_classes=4,
        step_share=0.01,
    ),
}
