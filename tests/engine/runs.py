"""Whole runs in a run folder, inside this process: what a task does, without launcher and kill."""

import csv
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import keras
import numpy as np
import yaml

from kdist import config as kdist_config
from kdist.assembly.cluster_link import NoCluster
from kdist.assembly.training_run import TrainingRun
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import traits_of
from kdist.launch.request import NullLink, TaskRequest

CHIEF = Task(TaskType.CHIEF, 0)
ALONE = ClusterSpec({TaskType.CHIEF: ("127.0.0.1:1",)})


class Killed(BaseException):
    """Stands for the end of the process: nobody catches it, nothing is written after it."""


class NoSignals:
    """No signal comes."""

    reason: str | None = None

    def install(self):
        """Nothing to take."""

    def begin(self):
        """Nothing changes."""

    def __call__(self):
        """Return why to stop."""
        return self.reason


class StopsAfter(NoSignals):
    """SIGTERM comes after so many stretches of steps."""

    def __init__(self, num_stretches):
        self._left = num_stretches

    def __call__(self):
        self._left -= 1
        return "SIGTERM" if self._left <= 0 else None


def await_checkpoint():
    """Let the checkpoint that is being written be whole: this process and its threads go on.

    Only a real kill ends a writer. Here it would write on, into what the test looks at.
    """
    for thread in threading.enumerate():
        if thread.name == "kdist-checkpoint":
            thread.join(30)
            assert not thread.is_alive(), "Gave up waiting for the checkpoint."


class DiesAt(keras.callbacks.Callback):
    """Ends the process after a batch, counted from the beginning of the attempt (from 1)."""

    def __init__(self, num_batches, error=Killed):
        super().__init__()
        self._left = num_batches
        self._error = error

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if self._left == 0:
            await_checkpoint()
            raise self._error("now")


@dataclass(frozen=True)
class Left:
    """What a run left in its folder."""

    path: Path

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.path / "result.json").read_text())

    @property
    def rows(self):
        with (self.path / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [{k: float(v) for k, v in row.items() if k != "seconds"} for row in rows]

    @property
    def weights(self):
        return keras.saving.load_model(self.path / "model.keras", compile=False).get_weights()

    @property
    def steps(self):
        return sorted(int(p.name[5:14]) for p in (self.path / "checkpoints").glob("step-*"))

    def events(self, name):
        lines = (self.path / "events.jsonl").read_text().splitlines()
        return [e for e in map(json.loads, lines) if e["event"] == name]


def run(
    folder,
    build,
    parts,
    *,
    devices=1,
    callbacks=(),
    signals=None,
    attempt=0,
    may_rename=False,
    spec=ALONE,
    **settings,
):
    """Train as the chief, without other tasks of kdist; return the exit code and what is left."""
    keras.utils.set_random_seed(0)
    content = {
        "seed": 0,
        "epochs": 2,
        "data": {"batch_size": 8, "shuffle": True, **settings.pop("data", {})},
        "strategy": {
            "name": "single" if devices == 1 else "mirrored",
            **settings.pop("strategy", {}),
        },
        **settings,
    }
    config = kdist_config.load(content)
    objects = {"build_model": build, "make_data": lambda: parts}
    if callbacks:
        objects["callbacks"] = list(callbacks)
    request = TaskRequest(
        config=content,
        config_yaml=yaml.safe_dump(content),
        typed_keys=(),
        spec=spec,
        task=CHIEF,
        run_dir=str(folder),
        may_rename_run_dir=may_rename,
        is_local=True,
        num_devices=devices,
        objects=cloudpickle.dumps(objects),
        attempt=attempt,
    )
    traits = traits_of(config.strategy.name, config.strategy.replication, config.strategy.update)
    training = TrainingRun(request, config, traits, NoCluster(), NullLink(), signals or NoSignals())
    return training.run(), Left(Path(folder))


def assert_same_run(mine, reference, tolerance=1e-6):
    """Compare weights, every row of metrics.csv, and the counts."""
    for a, b in zip(mine.weights, reference.weights, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=0)
    assert len(mine.rows) == len(reference.rows)
    for row, wanted in zip(mine.rows, reference.rows, strict=True):
        assert row == {k: pytest_approx(v) for k, v in wanted.items()}
    for key in ("batches_seen", "global_step", "examples_seen"):
        assert mine.result[key] == reference.result[key], key


def pytest_approx(value):
    """Return what equals a number within rounding, NaN included."""
    import pytest

    return pytest.approx(value, abs=1e-6, rel=1e-6, nan_ok=True)
