"""Models and callbacks of a search that goes wrong, or takes its time."""

import os
import signal
import threading
from pathlib import Path

import keras
import keras_tuner


def build(fault: str = "none", units: int = 4) -> keras.Model:
    """Return a small model, unless the fault says otherwise."""
    if fault == "raises":
        raise RuntimeError("this trial cannot be built")
    if fault == "dies_once" and not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    layers = [keras.layers.Dense(units, activation="relu"), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((8,)), *layers, keras.layers.Softmax()])


def loss(y_true, y_pred):
    """Return what never is a number."""
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred) * float("nan")


class Slow(keras.callbacks.Callback):
    """Makes every epoch last for a while."""

    def __init__(self, seconds: float = 0.4):
        super().__init__()
        self.seconds = seconds

    def on_epoch_end(self, epoch, logs=None):
        """Wait."""
        threading.Event().wait(self.seconds)


class HeldUntilStopped(keras.callbacks.Callback):
    """Keeps the first attempt in its first epoch until a signal has come."""

    def on_train_begin(self, logs=None):
        """Wait."""
        if Path("held").exists():
            return
        came = []
        take_before = signal.getsignal(signal.SIGTERM)

        def take(number, frame):
            take_before(number, frame)
            came.append(number)

        signal.signal(signal.SIGTERM, take)
        Path("held").touch()
        while not came:
            threading.Event().wait(0.05)


class Widths(keras_tuner.HyperModel):
    """Varies the width of the layer."""

    def build(self, hp):
        """Return a model of the chosen width."""
        return build(units=hp.Int("width", 2, 4))
