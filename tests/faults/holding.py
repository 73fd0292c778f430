"""A callback that holds a run at one place until a test lets it go; copied beside the run."""

import threading
import time
from pathlib import Path

import keras

DEADLINE_S = 90


class Holds(keras.callbacks.Callback):
    """Makes a file `held` in a hook of an epoch, and waits there until there is a file `go`.

    `hook` is on_epoch_end or on_test_begin; `epoch` counts from 0.
    """

    def __init__(self, hook, epoch):
        super().__init__()
        self.place = (hook, epoch)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        self._hold("on_epoch_end")

    def on_test_begin(self, logs=None):
        self._hold("on_test_begin")

    def _hold(self, hook):
        if (hook, self.epoch) != self.place:
            return
        Path("held").touch()
        end_s = time.monotonic() + DEADLINE_S
        while not Path("go").exists():
            if time.monotonic() > end_s:
                raise TimeoutError(f"nobody let the run go on within {DEADLINE_S} s")
            threading.Event().wait(0.02)
