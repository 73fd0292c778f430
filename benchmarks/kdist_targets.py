"""What kdist's command line names as `model._target_`, `data._target_` and a callback."""

import time
from pathlib import Path
from typing import Any

import keras

from benchmarks.workloads import WORKLOADS, compiled


def build_model(workload: str) -> keras.Model:
    """Return the compiled model of a workload."""
    return compiled(keras, workload)


def make_data(workload: str) -> dict[str, Any]:
    """Return the training rows of a workload; validation would blur what is timed."""
    return {"train": WORKLOADS[workload].make_arrays()}


class FirstBatchStamp(keras.callbacks.Callback):
    """Writes the time at which the first batch was done."""

    def __init__(self, path: str) -> None:
        """Write to `path`, in seconds since the epoch."""
        super().__init__()
        self._path = Path(path)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write the stamp after the first batch."""
        if not self._path.exists():
            self._path.write_text(repr(time.time()), encoding="utf-8")
