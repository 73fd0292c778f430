"""evaluate, predict, export: what one process does with a finished run."""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.assembly.building import Builder, Sources
from kdist.assembly.fixed_batches import rows_to_build_on
from kdist.assembly.label_rules import label_rules
from kdist.assembly.layouts import plan_layout, server_contents, server_lines
from kdist.assembly.row_tables import choose_row_tables
from kdist.cluster.task import TaskType
from kdist.config.schema import Config
from kdist.config.targets import resolve
from kdist.datasets.npz import npz
from kdist.distribute import keras_adapter
from kdist.distribute.buckets.valueless_tables import release
from kdist.distribute.data import BatchSource
from kdist.distribute.model.probe import has_own_steps, probe_training_step
from kdist.distribute.model.step_types import none_if_empty
from kdist.distribute.model.structure import (
    analyse,
    build_on_batch,
    call_model,
    describe,
    first_lines,
)
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError
from kdist.launch.request import TaskRequest
from kdist.records.atomic import replacing, write_text_atomically
from kdist.records.resumption import folder_of
from kdist.training.own_objects import targets_of
from kdist.training.saving import load_model, model_of_checkpoint, needs_checkpoint

_SILENT: Any = 0  # Keras takes 0 and "auto"; its annotations say text.


def run(config: Config, request: TaskRequest) -> int:
    """Carry out `config.command` on `config.run`; return the exit code.

    Raises:
        ConfigError: If the run or the data cannot be used.
    """
    if config.command == "plan":
        show_model(config, request)
        return 0
    assert config.run is not None
    path = Path(config.run)
    is_compiled = config.command == "evaluate"
    if needs_checkpoint(path):
        model = model_of_checkpoint(path, Builder(config, ()).model, key="run")
    else:
        named = _named_functions(config) if is_compiled else {}
        targets = targets_of(request.config)
        model = load_model(path, is_compiled=is_compiled, targets=targets, custom_objects=named)
    folder = folder_of(path)
    actions = {"evaluate": evaluate, "predict": predict, "export": export}
    actions[config.command](model, folder, config, request)
    return 0


def _named_functions(config: Config) -> dict[str, Any]:
    """Return the user's loss and metric functions: a saved model knows them by name only."""
    found = keras.tree.flatten(
        [resolve("loss", config.loss), resolve("metrics", config.metrics)],
    )
    return {each.__name__: each for each in found if inspect.isfunction(each)}


def show_model(config: Config, request: TaskRequest) -> None:
    """Build the model on the data's first rows and print its parameters and where they live."""
    builder = Builder(config, request.typed_keys)
    sources = builder.data(WorkerShare())
    model = builder.model()
    x, y, sample_weight = sources.train.first_batch(rows_to_build_on(model))
    y_pred = build_on_batch(model, x, y, none_if_empty(sample_weight))
    release(model)
    structure = analyse(model, y_pred, carries_seeds=False)
    if not has_own_steps(model):
        probe_training_step(structure, sources.train.element_spec)
    x_spec, num_servers = sources.train.element_spec[0], request.spec.num(TaskType.PS)
    notes = choose_row_tables(config, structure, x_spec, values_on_servers=num_servers > 0)
    layout = plan_layout(config, structure, num_servers=num_servers)
    sys.stdout.write(
        f"model       {structure.num_parameters:,} parameters, "
        f"{structure.parameter_bytes:,} bytes, {len(layout.buckets)} buckets\n"
    )
    servers = server_contents(structure, layout) if num_servers else ()
    for line in (*server_lines(servers), *notes):
        sys.stdout.write(f"            {line}\n")


def evaluate(model: keras.Model, folder: Path, config: Config, request: TaskRequest) -> None:
    """Print loss and metrics of the model on the validation data, and write evaluation.json."""
    sources = Builder(config, request.typed_keys).data(WorkerShare())
    part = sources.validation or sources.train
    if not model.compiled:
        raise ConfigError(f"The model of run={config.run} is not compiled: it has no loss.")
    if not has_own_steps(model):
        _check_data(model, part)
    batches = part.dataset(0, WorkerShare(), repeat=False)
    if config.limit_batches:
        batches = batches.take(config.limit_batches)
    results = model.evaluate(batches.map(_without_count), verbose=_SILENT, return_dict=True)
    named = {f"val_{name}": float(value) for name, value in results.items()}
    write_text_atomically(folder / "evaluation.json", json.dumps(named, indent=2) + "\n")
    for name, value in named.items():
        sys.stdout.write(f"{name}: {value:.6g}\n")
    sys.stdout.write(f"{_measured_text(sources, config)}\n")


def _measured_text(sources: Sources, config: Config) -> str:
    """Return how many rows were measured, and what was left out."""
    part = sources.validation or sources.train
    rows = "rows" if part.num_examples is None else f"{part.num_examples:,} examples"
    if config.limit_batches:
        rows = f"first {config.limit_batches} batches of the {rows}"
    if sources.validation is None:
        which = f"the {rows}" if config.limit_batches else f"all {rows}"
        return f"Measured on {which}: none are for validation."
    text = f"Measured on the {rows} for validation"
    if not config.data.arguments.get("validation_fraction"):
        return f"{text}."
    others = sources.train.num_examples
    left = "" if others is None else f", held out of {others + (part.num_examples or 0):,}"
    return f"{text}{left}; data.validation_fraction=0 measures all."


def _check_data(model: keras.Model, part: BatchSource) -> None:
    """Check that model and labels fit, now and for each batch that is read.

    Raises:
        ConfigError: If they do not.
    """
    x, y, sample_weight = part.first_batch(rows_to_build_on(model))
    y_pred = build_on_batch(
        model,
        x,
        y,
        none_if_empty(sample_weight),
        explain=lambda y_pred: part.expect_labels(label_rules(model, y_pred)),
    )
    part.expect_labels(label_rules(model, y_pred))


def predict(model: keras.Model, folder: Path, config: Config, request: TaskRequest) -> None:
    """Write predictions.npz with the model's outputs for the rows of `data.path`."""
    del request
    assert config.data.path is not None
    x = npz(config.data.path)["train"][0]
    try:
        outputs = model.predict(x, batch_size=config.data.batch_size, verbose=_SILENT)
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        raise ConfigError(
            f"The model of run={config.run} cannot take x of data.path={config.data.path}: "
            f"{first_lines(error)} Received: x {describe(x)}. The model takes "
            f"{_shown_inputs(model)}."
        ) from error
    if isinstance(outputs, dict):
        named = {f"predictions_{name}": value for name, value in outputs.items()}
    elif isinstance(outputs, list | tuple):
        named = {f"predictions_{index}": value for index, value in enumerate(outputs)}
    else:
        named = {"predictions": outputs}
    target = folder / "predictions.npz"
    with replacing(target) as unfinished:
        np.savez(unfinished, **named)
    sys.stdout.write(f"{len(keras.tree.flatten(x)[0])} predictions: {target}\n")


def export(model: keras.Model, folder: Path, config: Config, request: TaskRequest) -> None:
    """Write a SavedModel that plain TensorFlow serves (endpoint `serve`)."""
    del request
    _call_once(model, config)
    target = folder / "export"
    with keras_adapter.exported_for_inference(model):
        model.export(target, format="tf_saved_model", verbose=False)
    sys.stdout.write(f"SavedModel: {target}\n")


def _call_once(model: keras.Model, config: Config) -> None:
    """Call a model of its own class, loaded from a file, as Keras wants it before an export."""
    if getattr(model, "inputs", None):
        return
    shape = (model.get_build_config() or {}).get("input_shape")
    if shape is None:
        return  # Called already, as a model of a checkpoint is, or Keras will say so.
    try:
        call_model(model, tf.zeros([size or 1 for size in shape]), training=False)
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        raise ConfigError(
            f"The model of run={config.run} cannot be exported: {first_lines(error)} "
            f"Received: zeros of shape {tuple(shape)}, which it was built on."
        ) from error


def _shown_inputs(model: keras.Model) -> str:
    """Return the shapes that a model takes, any number of rows each."""
    if not getattr(model, "inputs", None):
        return "what it was trained on"
    return ", ".join(f"(rows, {str(tuple(each.shape[1:]))[1:]}" for each in model.inputs)


def _without_count(x: object, y: object, sample_weight: object, num_rows: object) -> object:
    del num_rows
    weights = none_if_empty(sample_weight)
    return (x, y) if weights is None else (x, y, weights)
