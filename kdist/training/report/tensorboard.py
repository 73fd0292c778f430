"""TensorBoard files: one scalar a metric and epoch, under `train/` and `validation/`.

What was set goes beside them, for the table and plots of TensorBoard's HParams over many runs.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from kdist.training.report.facts import ContributionSample, EpochFacts


class TensorBoardLog:
    """Writes scalars, named as Keras names them. Used by the chief only.

    The files are written by TensorBoard's own writer, not by TensorFlow's summary ops: those would
    be placed by whatever strategy is in force.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Write below `directory`; nothing is made yet."""
        self._directory = os.fspath(directory)
        self._writers: dict[str, Any] = {}
        self._batches_seen = 0
        self._settings: dict[str, Any] = {}

    def opening(self, settings: Mapping[str, bool | float | str]) -> None:
        """Take what was set; it is written with the first epoch."""
        self._settings = dict(settings)

    def go_on_after(self, batches_seen: int) -> None:
        """Let the next epoch be one that begins after so many batches."""
        self._batches_seen = batches_seen

    def epoch(self, facts: EpochFacts) -> None:
        """Write the scalars of an epoch, at step `facts.epoch`, through to the disk.

        Raises:
            OSError: If a file cannot be written.
        """
        self._write_settings()
        num_steps = facts.batches_seen - self._batches_seen
        self._batches_seen = facts.batches_seen
        scalars = {"train": {}, "validation": {}}
        for name, value in facts.metrics.items():
            part = "validation" if name.startswith("val_") else "train"
            scalars[part][f"epoch_{name.removeprefix('val_')}"] = value
        if facts.learning_rate is not None:
            scalars["train"]["epoch_learning_rate"] = facts.learning_rate
        if facts.seconds > 0 and num_steps > 0:
            scalars["train"]["epoch_steps_per_second"] = num_steps / facts.seconds
        for part, values in scalars.items():
            if values:
                self._write(part, values, step=facts.epoch)

    def contributions(self, sample: ContributionSample) -> None:
        """Write the worker and the staleness of each contribution, at the step of its update.

        Raises:
            OSError: If a file cannot be written.
        """
        for update, worker, staleness in zip(
            sample.updates, sample.workers, sample.staleness, strict=True
        ):
            values = {
                "contribution_worker": float(worker),
                "contribution_staleness": float(staleness),
            }
            self._write("workers", values, step=update)

    def close(self) -> None:
        """End the files. May be called twice.

        Raises:
            OSError: If a file cannot be written.
        """
        writers, self._writers = self._writers, {}
        for part, writer in writers.items():
            with _file_errors(os.path.join(self._directory, part)):
                writer.close()

    def _write_settings(self) -> None:
        settings, self._settings = self._settings, {}
        if not settings:
            return
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.hparams import api
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        with _file_errors(self._directory):
            events: Any = event_pb2
            event = events.Event(wall_time=time.time(), summary=api.hparams_pb(settings))
            writer = EventFileWriter(self._directory)
            writer.add_event(event)
            writer.close()

    def _write(self, part: str, values: dict[str, float], *, step: int) -> None:
        directory = os.path.join(self._directory, part)
        with _file_errors(directory):
            writer = self._writers.get(part)
            if writer is None:
                writer = self._writers[part] = _summary().Writer(directory)
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()


@contextlib.contextmanager
def _file_errors(path: str) -> Iterator[None]:
    """Turn the errors of TensorFlow's files, through which TensorBoard writes, into `OSError`."""
    from tensorflow import errors  # Loaded already wherever something trains.

    try:
        yield
    except errors.OpError as error:
        raise OSError(f"{path}: {error}") from error


def _summary() -> ModuleType:
    from tensorboard import summary

    return summary
