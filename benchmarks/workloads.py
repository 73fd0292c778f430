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
        optimizer: A class of `keras.optimizers`, and its learning rate.
        batch_size: Examples a worker; `None` for the benchmarks' own.
        kdist_arguments: What else kdist's command line is given.
    """

    build: Callable[[ModuleType], Any]
    make_arrays: Callable[[], Arrays]
    num_classes: int
    step_share: float = 1.0
    optimizer: tuple[str, float] = ("Adam", 1e-3)
    batch_size: int | None = None
    kdist_arguments: tuple[str, ...] = ()


def compiled(keras: ModuleType, workload: str, **compile_options: Any) -> Any:
    """Return the named workload's model, compiled with its optimizer and accuracy."""
    chosen = WORKLOADS[workload]
    model = chosen.build(keras)
    if chosen.num_classes == 1:
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        metrics = [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)]
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = ["accuracy"]
    name, learning_rate = chosen.optimizer
    optimizer = getattr(keras.optimizers, name)(learning_rate)
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


def _wide_deep(num_rows: int) -> Callable[[ModuleType], Any]:
    def build(keras: ModuleType) -> Any:
        layers = keras.layers
        ids = keras.Input((8,), dtype="int32")
        deep = layers.Flatten()(layers.Embedding(num_rows, 64, name="deep")(ids))
        for units in (128, 64):
            deep = layers.Dense(units, activation="relu")(deep)
        wide = layers.Flatten()(layers.Embedding(num_rows, 1, name="wide")(ids))
        return keras.Model(ids, layers.Dense(1)(layers.concatenate([deep, wide])))

    return build


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


def _ids(num_ids: int = 100_000, num_rows: int = _NUM_ROWS) -> Arrays:
    generator = np.random.default_rng(0)
    ids = (generator.zipf(1.2, size=(num_rows, 8)) % num_ids).astype("int32")
    return ids, generator.integers(0, 2, size=(num_rows, 1)).astype("float32")


def _wide_deep_workload(num_ids: int) -> Workload:
    return Workload(
        build=_wide_deep(num_ids),
        make_arrays=lambda: _ids(num_ids, 64 * 512),
        num_classes=1,
        step_share=0.2,
        optimizer=("Adagrad", 0.01),
        batch_size=512,
        kdist_arguments=(
            "strategy.sparse=rows",
            "checkpoint.every_epochs=null",
            "checkpoint.every_seconds=null",
        ),
    )


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
    "embedding": Workload(build=_embedding, make_arrays=_ids, num_classes=1, step_share=0.1),
    "large": Workload(
        build=_large,
        make_arrays=_floats(256, 10_000, num_classes=4),
        num_classes=4,
        step_share=0.003,
    ),
    **{
        f"wide_deep_{name}": _wide_deep_workload(num_ids)
        for name, num_ids in (("100k", 100_000), ("1m", 1_000_000), ("10m", 10_000_000))
    },
}
