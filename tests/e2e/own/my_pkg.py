"""What a user might bring: every part of an experiment, found in the current directory."""

import os

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
        if batch == 3:
            raise RuntimeError("the callback broke")


class StopsAtNan(keras.callbacks.TerminateOnNaN):
    """Keras' own, by another name."""


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


def three_examples():
    return {"train": (np.zeros((3, 2), "float32"), np.zeros(3, "int64"))}


def slow(seconds=0.02, num_examples=1024):
    """Data that takes its time, so that a run lasts as long as a test needs."""
    import tensorflow as tf

    rows = np.random.default_rng(0).random((num_examples, 8), "float32")
    labels = (rows.sum(axis=1) > 4).astype("int64")

    def wait(x, y):
        import time

        time.sleep(seconds)
        return x, y

    def batches(context):
        data = tf.data.Dataset.from_tensor_slices((rows, labels)).batch(32)
        slowed = data.map(lambda x, y: tf.numpy_function(wait, [x, y], [x.dtype, y.dtype]))
        shaped = slowed.map(
            lambda x, y: (tf.ensure_shape(x, [None, 8]), tf.ensure_shape(y, [None]))
        )
        return shaped.repeat()

    return {"train": batches}


def nan_data():
    rows = np.random.default_rng(0).random((64, 8), "float32")
    rows[5, 2] = np.nan
    return {"train": (rows, np.zeros(64, "int64")), "validation": (rows, np.zeros(64, "int64"))}


class StopsOnFile(keras.callbacks.Callback):
    """Ends training once a file exists."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = os.path.exists(self.path)
