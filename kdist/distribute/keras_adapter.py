"""Everything private of Keras that kdist relies on, in one place.

Keras 3.15. Each function says why the public API does not reach;
`tests/engine/test_keras_adapter.py` fails loudly when one of these places changes.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state


def overrides_compute_loss(model: keras.Model) -> bool:
    """Return whether the model computes its loss by a method of its own."""
    return type(model).compute_loss is not keras.Model.compute_loss


def overrides_compute_metrics(model: keras.Model) -> bool:
    """Return whether the model computes its metrics by a method of its own."""
    return type(model).compute_metrics is not keras.Model.compute_metrics


def overrides_train_step(model: keras.Model) -> bool:
    """Return whether the model brings a training step of its own."""
    return type(model).train_step is not keras.Model.train_step


def overrides_test_step(model: keras.Model) -> bool:
    """Return whether the model brings an evaluation step of its own."""
    return type(model).test_step is not keras.Model.test_step


def calls_with_training(model: keras.Model) -> bool:
    """Return whether `model(x, training=...)` is allowed (`call(self, x)` takes none).

    Private because `Layer` decides it from the signature and keeps the answer to itself.
    """
    return bool(model._call_has_training_arg)


@contextlib.contextmanager
def exported_for_inference(model: keras.Model) -> Iterator[None]:
    """Let `model.export` within it write what `model.predict` computes.

    It exports `model.__call__` as it is, where layers that augment images do so unless they are
    told that nobody trains. `ExportArchive` takes another function, but only with a signature, and
    what finds a model's signature is private.
    """
    if not calls_with_training(model):
        yield
        return
    owner: Any = model
    owner.__call__ = functools.partial(model.__call__, training=False)
    try:
        yield
    finally:
        del owner.__call__


@contextlib.contextmanager
def called_with_masks(layers: Sequence[keras.layers.Layer]) -> Iterator[list[keras.layers.Layer]]:
    """Record which layers are given a mask of their inputs while models are called within it.

    Private because masks ride on tensors, and `Layer` hands them to `call` by itself.
    """
    found: list[keras.layers.Layer] = []

    def recording(layer: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if options.get("mask") is not None and not any(each is layer for each in found):
                found.append(layer)
            return original(*args, **options)

        return call

    hooked: list[Any] = list(layers)
    for each in hooked:
        each.call = recording(each, each.call)
    try:
        yield found
    finally:
        for each in hooked:
            del each.call


def loss_tracker(model: keras.Model) -> keras.metrics.Metric:
    """Return the metric behind the log entry "loss"; `model.metrics` lists it without saying so."""
    return model._loss_tracker


@dataclass(frozen=True)
class LossEntry:
    """One loss of a compiled model; `path` is its output's place, `tracker` logs it if many do."""

    name: str
    path: tuple[Any, ...]
    loss: Callable[..., Any]
    tracker: keras.metrics.Metric | None


def loss_entries(model: keras.Model) -> tuple[LossEntry, ...]:
    """Return the losses of a built, compiled model, in Keras' order.

    Private because Keras resolves names, nesting and weights of losses in `CompileLoss` only.
    """
    compiled = model._compile_loss
    if compiled is None or compiled._flat_losses is None:
        return ()
    trackers = list(compiled.metrics) or [None] * len(compiled._flat_losses)
    return tuple(
        LossEntry(entry.name, tuple(entry.path), entry.loss, tracker)
        for entry, tracker in zip(compiled._flat_losses, trackers, strict=True)
    )


@contextlib.contextmanager
def replaced_losses(
    model: keras.Model, replacements: Sequence[Callable[..., Any]]
) -> Iterator[None]:
    """Let the compiled loss call `replacements` in place of its losses, in the same order.

    Only this model object is touched, and only inside the block: this is how a loss is scaled by a
    denominator that spans replicas while Keras goes on matching outputs, labels and weights.
    """
    compiled = model._compile_loss
    original = compiled._flat_losses
    compiled._flat_losses = [
        entry._replace(loss=replacement)
        for entry, replacement in zip(original, replacements, strict=True)
    ]
    try:
        yield
    finally:
        compiled._flat_losses = original


def call_compiled_loss(model: keras.Model, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Return the sum of the compiled losses without `add_loss` and regularizers."""
    return model._compile_loss(y, y_pred, sample_weight)


def has_compiled_loss(model: keras.Model) -> bool:
    """Return whether `compile` was given a loss."""
    return getattr(model, "_compile_loss", None) is not None


def keras_mask(tensor: Any) -> Any:
    """Return the mask that Keras attached to a tensor, or `None`."""
    return getattr(tensor, "_keras_mask", None)


def attach_mask(tensor: Any, mask: Any) -> None:
    """Attach a mask as Keras does, to a part of a tensor, say, which has lost its own."""
    tensor._keras_mask = mask


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """Return the model and every layer in it, at any depth.

    Private because public `layers` lists the first level only, and nothing of a layer's own ones.
    """
    return list(model._flatten_layers())


def rebind(variable: keras.Variable, value: tf.Variable) -> None:
    """Make `variable` a view of `value`, so that a large variable exists only once.

    Private because a Keras variable cannot be given an existing distributed variable.
    """
    variable._value = value


def uses_weight_decay(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """Return whether `exclude_from_weight_decay` left this variable in (Keras keeps it private).

    In a `MultiOptimizer` the optimizer that it chooses for the variable decides.
    """
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        optimizer = optimizer._optimizer_map(variable)
    if not has_value(variable):  # Only names can have been excluded: there was no variable yet.
        pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
        return pattern is None or pattern.search(variable.name) is None
    return optimizer._use_weight_decay(variable)


def has_value(variable: keras.Variable) -> bool:
    """Return whether a variable was given a value; one that `build_without_value` made was not."""
    return variable._value is not None


def give_value(variable: keras.Variable, value: Any) -> None:
    """Give a variable a value, whether or not it has one already.

    Private because public `assign` needs a value to replace.
    """
    if has_value(variable):
        variable.value.assign(value)
        return
    variable.__dict__.pop("_direct_assign", None)
    variable._initialize(value)


def drop_value(variable: keras.Variable) -> None:
    """Take the value of a variable of `build_without_value` away again."""
    variable._value = None
    variable._direct_assign = functools.partial(give_value, variable)


def build_without_value(layer: keras.Layer, build: Callable[[], None]) -> None:
    """Run `build` so that the weights of a layer get no value, until they are assigned one.

    `keras.StatelessScope(initialize_variables=False)` is public, but Keras keeps a list of such
    variables, and fills them all when the next scope of another kind ends.
    """
    with keras.StatelessScope(initialize_variables=False):
        build()
    waiting = global_state.get_global_attribute("uninitialized_variables") or []
    for variable in layer.weights:
        waiting[:] = [each for each in waiting if each is not variable]
        variable._direct_assign = functools.partial(give_value, variable)


def own_iterations(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """Return the counter of `apply` calls; public `iterations` is divided by the accumulation."""
    return optimizer._iterations


def learning_rate_setting(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return what decides the learning rate: a variable, a schedule, a function; or `None`.

    Private because public `learning_rate` answers with a value where a schedule decides. `None`
    for a `MultiOptimizer`, which holds a rate of 0 that it does not use, and refuses another.
    """
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return None
    return optimizer._learning_rate


def ema_averages(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the moving averages of a built optimizer with `use_ema=True`."""
    return list(optimizer._model_variables_moving_average)


@contextlib.contextmanager
def recorded_slots(optimizer: keras.optimizers.Optimizer) -> Iterator[list[tuple[Any, Any]]]:
    """Record (reference variable, slot) pairs while the optimizer is built inside the block.

    Those of the optimizers inside a `MultiOptimizer` are among them. Private because an optimizer
    does not say which variable a slot belongs to. A slot in a shape of its own (Adafactor's rows
    and columns) belongs to the variable of the next one.
    """
    recorded: list[tuple[Any, Any]] = []
    hooked = [optimizer, *getattr(optimizer, "optimizers", ())]
    known = {id(variable) for each in hooked for variable in each.variables}

    def recording(each: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def record(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
            slot = original(reference_variable, *args, **kwargs)
            new = [variable for variable in each.variables if id(variable) not in known]
            recorded.extend((reference_variable, variable) for variable in new)
            known.update(id(variable) for variable in new)
            return slot

        return record

    for each in hooked:
        each.add_variable_from_reference = recording(each, each.add_variable_from_reference)
    try:
        yield recorded
    finally:
        for each in hooked:
            del each.add_variable_from_reference


def slots_of(
    optimizer: keras.optimizers.Optimizer, variable: Any, *kinds: str
) -> list[tf.Variable]:
    """Return the slots of a variable, inside of `update_step`.

    Private because Keras keeps the slots of Adam, and the order of its variables, to itself.

    Args:
        optimizer: A built optimizer.
        variable: What `update_step` was given.
        *kinds: Attributes in which the optimizer lists its slots.
    """
    index = optimizer._get_variable_index(variable)
    return [getattr(optimizer, kind)[index].value for kind in kinds]


def set_path(variable: keras.Variable, path: str, name: str) -> None:
    """Give a bucket the path of the one variable it holds, for rules that go by path or name."""
    variable._path = path
    variable._name = name
