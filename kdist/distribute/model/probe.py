"""One trial trace of the training step, before training: what it writes, and what it may not do.

A pure function would silently train some models wrong (a variable that Keras does not know keeps
its first value, for example). They are refused here, by name.
"""

from typing import Any

import keras
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.model.state_scope import StateScope
from kdist.distribute.model.step_types import none_if_empty
from kdist.distribute.model.structure import (
    ModelStructure,
    call_model,
    first_lines,
    move_written_states,
)
from kdist.errors import ConfigError


def probe_training_step(structure: ModelStructure, batch_spec: tuple[Any, Any, Any]) -> None:
    """Trace forward and backward pass once; fill in the states that a step writes.

    Args:
        structure: From `structure.analyse`; `float_states` and `int_states` are completed.
        batch_spec: `(x, y, sample_weight)` as nests of `tf.TensorSpec`; `()` for no weights.

    Raises:
        ConfigError: If the model cannot be trained exactly as a pure function; the message names
            the variable or the layer.
    """
    variables = [
        *structure.trainable,
        *structure.int_states,
        *structure.seeds,
        *structure.frozen,
        *(v for slots in (*structure.trackers, *structure.metrics) for v in slots.variables),
    ]
    result: dict[str, list[keras.Variable]] = {}

    def step(values: list[tf.Tensor], x: Any, y: Any, sample_weight: Any) -> tf.Tensor:
        given = {id(v): value for v, value in zip(variables, values, strict=True)}
        parameters = [given[id(v)] for v in structure.trainable]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(parameters)
            mapping = list(zip(variables, values, strict=True))
            with StateScope(mapping, collect_losses=True) as scope:
                start = {id(v): scope.get_current_value(v) for v in variables}
                y_pred = call_model(structure.model, x, training=True)
                after_forward = {id(v): scope.get_current_value(v) for v in variables}
                loss = structure.model.compute_loss(
                    x=x,
                    y=y,
                    y_pred=y_pred,
                    sample_weight=none_if_empty(sample_weight),
                )
                if loss.shape.rank != 0:
                    loss = tf.reduce_sum(loss)
        gradients = tape.gradient(loss, parameters)
        result["written"] = [v for v in variables if start[id(v)] is not after_forward[id(v)]]
        result["sparse"] = [
            v
            for v, g in zip(structure.trainable, gradients, strict=True)
            if isinstance(g, tf.IndexedSlices)
        ]
        result["without_gradient"] = [
            v for v, g in zip(structure.trainable, gradients, strict=True) if g is None
        ]
        return loss

    specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
    try:
        concrete = tf.function(step, autograph=False).get_concrete_function(specs, *batch_spec)
    except ConfigError:
        raise
    except (ValueError, TypeError, KeyError, NotImplementedError, tf.errors.OpError) as error:
        raise ConfigError(
            f"The model's training step cannot be traced: {first_lines(error)} "
            "Check model.*, loss and data.*."
        ) from error
    _refuse_captured_variables(structure, concrete)
    written = {id(v) for v in result["written"]}
    _refuse(
        [v for v in structure.trainable if id(v) in written],
        "is trainable and is also written by the forward pass (as SpectralNormalization does), "
        "so two replicas would disagree about it",
        "use a layer that keeps such state in non-trainable variables",
    )
    _refuse(
        result["without_gradient"],
        "is trainable but the loss does not depend on it",
        "set trainable=False on its layer, or use its output",
    )
    move_written_states(structure, result["written"])
    sparse = {id(v) for v in result["sparse"]}
    structure.sparse = frozenset(i for i, v in enumerate(structure.trainable) if id(v) in sparse)


def _refuse(variables: list[keras.Variable], fault: str, remedy: str) -> None:
    if variables:
        names = ", ".join(v.path for v in variables)
        raise ConfigError(f"The model cannot be trained: {names} {fault}. To go on, {remedy}.")


def _refuse_captured_variables(structure: ModelStructure, concrete: Any) -> None:
    captured = list(concrete.graph.variables)
    if not captured:
        return
    names = ", ".join(sorted({v.name for v in captured}))
    layers = keras_adapter.all_layers(structure.model)
    stateful = [layer.name for layer in layers if getattr(layer, "stateful", False)]
    foreign = [layer.name for layer in layers if isinstance(layer, keras.layers.TFSMLayer)]
    if stateful:
        hint = f" The stateful layers are: {', '.join(stateful)}; set stateful=False."
    elif foreign:
        hint = f" A SavedModel cannot be trained on: build {', '.join(foreign)} of Keras layers."
    else:
        hint = (
            " Use self.add_weight(...) in a layer for a variable, and a keras.random.SeedGenerator"
            " attribute for random numbers."
        )
    raise ConfigError(
        "The model uses variables that Keras does not list as the model's own, so every task would "
        f"train a private copy. Received: {names}.{hint}"
    )


def has_own_steps(model: keras.Model) -> bool:
    """Return whether the model brings a `train_step` or `test_step` of its own."""
    return keras_adapter.overrides_train_step(model) or keras_adapter.overrides_test_step(model)


def refuse_custom_steps(
    model: keras.Model, *, num_replicas: int, allowed: bool, in_one_process: bool
) -> None:
    """Refuse a model's own `train_step` or `test_step` where one step is not one call.

    Raises:
        ConfigError: If the model has one, and several replicas without leave, or processes.
    """
    if num_replicas == 1 and in_one_process:
        return
    if has_own_steps(model) and not in_one_process:
        raise ConfigError(
            f"{type(model).__name__} overrides train_step or test_step, which only "
            "strategy=single and strategy=mirrored can run. Override compute_loss instead."
        )
    if keras_adapter.overrides_test_step(model):
        raise ConfigError(
            f"{type(model).__name__} overrides test_step, which cannot be split exactly over a "
            "batch. Override compute_loss or compute_metrics instead."
        )
    if keras_adapter.overrides_train_step(model) and not allowed:
        raise ConfigError(
            f"{type(model).__name__} overrides train_step; with {num_replicas} replicas its own "
            "gradient tape would sum gradients that should be averaged. Override compute_loss "
            "instead, or accept that with strategy.allow_custom_train_step=true."
        )
