"""Writing and reading models: `model.keras`, weights to start from, exports."""

import contextlib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute.buckets.spilled import KeptTable, spilled
from kdist.distribute.loops.inner_loop import Store
from kdist.distribute.model.structure import call_model, first_lines
from kdist.errors import ConfigError
from kdist.records.atomic import replacing
from kdist.training.checkpoints.canonical import restore_variables
from kdist.training.checkpoints.find import find_checkpoint
from kdist.training.optimizer_view import OptimizerView
from kdist.training.own_objects import own_objects, targets_of_run


def save_model(model: keras.Model, store: Store, view: OptimizerView, path: Path) -> None:
    """Write `model.keras` whole or not at all; the chief calls it.

    Raises:
        EnvironmentFault: If the file cannot be written.
    """
    store.write_to_model()
    view.pull()
    with replacing(path) as unfinished, view.saves_state(), _saves_tables(store):
        model.save(unfinished)


def check_can_be_saved(model: keras.Model) -> None:
    """Let Keras describe the model as in `model.keras`, before hours of training.

    Raises:
        ConfigError: If it cannot be described.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # They come again when it is saved.
            json.dumps(keras.saving.serialize_keras_object(model))
    except Exception as error:
        raise ConfigError(
            f"Keras cannot save the model, which a run does at its end: {first_lines(error)} "
            f"Received: {type(model).__name__}. Try model.save('model.keras')."
        ) from error


@contextlib.contextmanager
def _saves_tables(store: Store) -> Iterator[None]:
    """Let Keras save tables that only the servers hold, by way of the disk, inside the block."""

    def saving(table: KeptTable) -> Callable[[Any], None]:
        def save_own_variables(entries: Any) -> None:
            entries["0"] = spilled(table.parts)

        return save_own_variables

    tables: list[Any] = store.kept_tables
    for table in tables:
        table.layer.save_own_variables = saving(table)
    try:
        yield
    finally:
        for table in tables:
            del table.layer.save_own_variables


def needs_checkpoint(path: Path) -> bool:
    """Return whether a folder has no model file: a checkpoint, or a run that has not ended."""
    return path.is_dir() and not (path / "model.keras").exists()


def model_of_checkpoint(path: Path, build: Callable[[], keras.Model], *, key: str) -> keras.Model:
    """Return a model with the weights of a checkpoint.

    Args:
        path: The checkpoint's folder, or that of a run with checkpoints.
        build: Makes the model that was trained; it need not be built.
        key: The key that named the path, for messages.

    Raises:
        ConfigError: If there is no whole checkpoint, or its weights do not fit.
    """
    saved = find_checkpoint(str(path), lambda warning: None, key=key)
    model = build()
    inputs: Any = keras.tree.map_structure(_zeros, saved.state["inputs"])
    try:
        call_model(model, inputs, training=False)
        restore_variables(model, saved.read)
    except (ValueError, TypeError, KeyError, tf.errors.InvalidArgumentError) as error:
        raise ConfigError(
            f"The checkpoint of {key}={path} does not fit the model: {first_lines(error)}"
        ) from error
    return model


def _zeros(described: str) -> Any:
    """Return one row as `float32[None, 6]` describes it; other open sizes are 1, too."""
    dtype, _, sizes = described.removesuffix("]").partition("[")
    shape = [int(size) if size.strip().isdigit() else 1 for size in sizes.split(",") if size]
    return tf.zeros(shape, tf.as_dtype(dtype)) if dtype != "string" else tf.fill(shape, "")


def load_model(
    path: Path,
    *,
    is_compiled: bool = False,
    targets: Mapping[str, str] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
) -> keras.Model:
    """Return the model of a run folder or a `.keras` file, with the user's own classes.

    Args:
        path: The folder or the file.
        is_compiled: Restore optimizer, loss and metrics too.
        targets: Dotted paths by key whose modules know the user's own classes, before those that
            the run's config.yaml names.
        custom_objects: What names in the file stand for, where Keras cannot know.

    Raises:
        ConfigError: If there is none, or it cannot be read.
    """
    file = path / "model.keras" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"run={path} holds no model: {file} does not exist. Name a finished run.")
    given = dict(custom_objects or {})
    named = [targets or {}, targets_of_run(path)]
    own = own_objects(file, named, is_compiled=is_compiled, known=given)
    known = {**own.found, **given}
    try:
        model: Any = keras.saving.load_model(file, compile=is_compiled, custom_objects=known)
        return model
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = own.advice() if own.missing else _cause(error)
        raise ConfigError(f"{file} cannot be read as a Keras model: {why}") from error


def _cause(error: BaseException) -> str:
    """Return why Keras cannot make an object, and of which class, without the file's content."""
    *outer, inner = re.split(r"\n\n(?:Exception|Error) encountered[^:\n]*: ", str(error))
    classes = re.findall(r"<class '([\w.]+)'> could not be deserialized", "\n".join(outer))
    said = inner.partition(" Full object config:")[0].partition("\n\nconfig=")[0]
    text = first_lines(ValueError(said))
    return f"{classes[-1]} could not be made from its configuration: {text}" if classes else text


def start_from(model: keras.Model, path: Path) -> None:
    """Give a model the weights of a run, a checkpoint, a `.keras` or a weights file (`init_from`).

    Raises:
        ConfigError: If the file is missing or its weights do not fit.
    """
    if needs_checkpoint(path):
        saved = find_checkpoint(str(path), lambda warning: None, key="init_from")
        restore_variables(model, saved.read)
        return
    file = path / "model.keras" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"init_from={path} does not exist. Name a run folder or a weights file.")
    try:
        if file.suffix == ".keras":
            own = own_objects(file, [targets_of_run(path)], is_compiled=False)
            if own.missing:  # Where to put the weights, the model that is there knows.
                model.load_weights(file)
                return
            known = dict(own.found)
            source: Any = keras.saving.load_model(file, compile=False, custom_objects=known)
            model.set_weights(source.get_weights())
        else:
            model.load_weights(file)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"The weights of init_from={path} do not fit the model: {first_lines(error)}"
        ) from error
