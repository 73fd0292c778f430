"""What a user might bring: every part of an experiment, found in the current directory."""

import os
import sys

import keras
import numpy as np
from sklearn.datasets import load_digits


def build(units, width=24):
    return keras.Sequential(
        [
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dense(units, activation="softmax"),
        ]
    )


def load(num_validation):
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    part = {"train": (x[num_validation:], y[num_validation:])}
    return {**part, "validation": (x[:num_validation], y[:num_validation])}


def loss(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)


def hits(y_true, y_pred):
    return keras.metrics.sparse_categorical_accuracy(y_true, y_pred)


class Note(keras.callbacks.Callback):
    """Writes down what it is told, and how large the weights are then."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        size = float(np.abs(self.model.get_weights()[0]).sum())
        with open(self.path, "a") as file:
            file.write(f"{epoch} {sorted(logs)} {size > 0}\n")


class Fails(keras.callbacks.Callback):
    """Fails in the middle of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise RuntimeError("the callback broke")


class FailsAtTheEnd(keras.callbacks.Callback):
    """Fails when an epoch has ended."""

    def on_epoch_end(self, epoch, logs=None):
        raise RuntimeError("the callback broke")


def fails_to_load():
    raise OSError("the disk is gone")


def fails_to_build():
    raise RuntimeError("no such layer")


def builds_nothing():
    return "a model"


def loads_nothing():
    return {"validation": None}


def strange_labels():
    rows = np.random.default_rng(0).random((64, 8), "float32")
    return {"train": (rows, np.full(64, 12))}


def unequal_lengths():
    return {"train": (np.zeros((8, 2), "float32"), np.zeros(7))}


def uneven():
    """Give the second worker more rows."""
    num_rows = 64 + 8 * ("worker-1" in sys.argv)
    return {"train": (np.zeros((num_rows, 2), "float32"), np.zeros(num_rows, "int64"))}


def unseeded():
    """Give each task rows of its own."""
    return {"train": (np.random.default_rng().random((64, 2), "float32"), np.zeros(64, "int64"))}


def three_examples():
    return {"train": (np.zeros((3, 2), "float32"), np.zeros(3, "int64"))}


def nan_loss(y_true, y_pred):
    return loss(y_true, y_pred) * float("nan")


class StopsOnFile(keras.callbacks.Callback):
    """Ends training once a file exists."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = os.path.exists(self.path)


def build_for_five():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(10, activation="softmax")])


class ZeroesWeights(keras.callbacks.Callback):
    """Sets all weights to zero after every batch."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.set_weights([weight * 0 for weight in self.model.get_weights()])
