"""evaluate, predict, export: what one process does with a finished run."""

import json
import sys
from pathlib import Path

import keras
import numpy as np

from kdist.assembly.building import Builder
from kdist.config.schema import Config
from kdist.datasets.npz import npz
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError
from kdist.launch.request import TaskRequest
from kdist.training.saving import load_model


def run(config: Config, request: TaskRequest) -> int:
    """Carry out `config.command` on `config.run`; return the exit code.

    Raises:
        ConfigError: If the run or the data cannot be used.
    """
    assert config.run is not None
    path = Path(config.run)
    model = load_model(path)
    folder = path if path.is_dir() else path.parent
    actions = {"evaluate": evaluate, "predict": predict, "export": export}
    actions[config.command](model, folder, config, request)
    return 0


def evaluate(model: keras.Model, folder: Path, config: Config, request: TaskRequest) -> None:
    """Print loss and metrics of the model on the validation data, and write evaluation.json."""
    sources = Builder(config, request.typed_keys).data(WorkerShare())
    part = sources.validation or sources.train
    batches = part.dataset(0, WorkerShare(), repeat=False)
    if config.limit_batches:
        batches = batches.take(config.limit_batches)
    if not model.compiled:
        raise ConfigError(f"The model of run={config.run} is not compiled: it has no loss.")
    results = model.evaluate(batches.map(_without_count), verbose=0, return_dict=True)
    named = {f"val_{name}": float(value) for name, value in results.items()}
    (folder / "evaluation.json").write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")
    for name, value in named.items():
        sys.stdout.write(f"{name}: {value:.6g}\n")


def predict(model: keras.Model, folder: Path, config: Config, request: TaskRequest) -> None:
    """Write predictions.npz with the model's outputs for the rows of `data.path`."""
    del request
    assert config.data.path is not None
    x = npz(config.data.path)["train"][0]
    outputs = model.predict(x, batch_size=config.data.batch_size, verbose=0)
    if isinstance(outputs, dict):
        named = {f"predictions_{name}": value for name, value in outputs.items()}
    elif isinstance(outputs, list | tuple):
        named = {f"predictions_{index}": value for index, value in enumerate(outputs)}
    else:
        named = {"predictions": outputs}
    target = folder / "predictions.npz"
    np.savez(target, **named)
    sys.stdout.write(f"{len(keras.tree.flatten(x)[0])} predictions: {target}\n")


def export(model: keras.Model, folder: Path, config: Config, request: TaskRequest) -> None:
    """Write a SavedModel that plain TensorFlow serves (endpoint `serve`)."""
    del config, request
    target = folder / "export"
    model.export(target, format="tf_saved_model", verbose=False)
    sys.stdout.write(f"SavedModel: {target}\n")


def _without_count(x: object, y: object, sample_weight: object, num_rows: object) -> object:
    del num_rows
    is_weighted = not (isinstance(sample_weight, tuple) and not sample_weight)
    return (x, y, sample_weight) if is_weighted else (x, y)
