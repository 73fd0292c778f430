"""What a Keras model is made of, as the engine sees it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.model.loss_terms import LossTerm, find_loss_terms
from kdist.errors import ConfigError

_KERAS_FRAME = re.compile(r"\x1b\[[0-9;]*m|Exception encountered when calling [^\n]*\n")
SEED_STATE_NAME = "seed_generator_state"


@dataclass(frozen=True)
class MetricSlots:
    """The variables of one metric and the values that `reset_state` gives them."""

    metric: keras.metrics.Metric
    variables: tuple[keras.Variable, ...]
    reset_values: tuple[np.ndarray, ...]


@dataclass(kw_only=True)
class ModelStructure:
    """A compiled, built model taken apart; positions in these lists identify variables.

    Attributes:
        trainable: Variables that the optimizer updates.
        float_states: Floating non-trainable variables that a training step writes.
        int_states: Integer variables that a training step writes (seeds only when carried).
        seeds: States of random seed generators that are inputs of a step.
        seed_values: Their first values.
        frozen: Everything else that a forward pass may read.
        metrics: All metrics but the loss tracker and the trackers of single losses.
        sparse: Positions of trainable variables whose gradient is (rows, row ids): tables of
            embeddings.
        by_rows: Positions of embedding tables that an update changes in the rows of a batch only.
        kept_on_servers: Positions of tables that the model is never given the values of.
        terms: The compiled losses; empty when the model computes its loss itself.
    """

    model: keras.Model
    trainable: list[keras.Variable]
    float_states: list[keras.Variable] = field(default_factory=list)
    int_states: list[keras.Variable] = field(default_factory=list)
    seeds: list[keras.Variable] = field(default_factory=list)
    frozen: list[keras.Variable] = field(default_factory=list)
    metrics: list[MetricSlots] = field(default_factory=list)
    trackers: list[MetricSlots] = field(default_factory=list)
    sparse: frozenset[int] = frozenset()
    by_rows: frozenset[int] = frozenset()
    kept_on_servers: frozenset[int] = frozenset()
    terms: tuple[LossTerm, ...] = ()
    has_own_loss: bool = False
    has_synchronized_layers: bool = False
    seed_values: list[np.ndarray] = field(default_factory=list)

    @property
    def num_parameters(self) -> int:
        """Return the number of trainable and non-trainable weights."""
        return int(sum(np.prod(v.shape, dtype=np.int64) for v in self.model.weights))

    @property
    def parameter_bytes(self) -> int:
        """Return the bytes of all weights."""
        return int(
            sum(
                np.prod(v.shape, dtype=np.int64) * tf.as_dtype(v.dtype).size
                for v in self.model.weights
            )
        )


def build_on_batch(
    model: keras.Model,
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    explain: Callable[[Any], None] = lambda y_pred: None,
) -> Any:
    """Build every variable of a compiled model, its losses and its metrics; return `y_pred`.

    Args:
        model: A compiled model.
        x: Inputs of a few rows, as the data part gives them.
        y: Their labels.
        sample_weight: Their weights, or `None`.
        explain: Called with the outputs when loss or metrics fail; may raise a better error.

    Raises:
        ConfigError: If the model cannot take the data.
    """
    y_pred = None
    try:
        y_pred = call_keeping_state(model, x)
        model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    except (
        ValueError,
        TypeError,
        KeyError,
        tf.errors.InvalidArgumentError,
        tf.errors.UnimplementedError,
    ) as error:
        if y_pred is not None:
            explain(y_pred)
        raise ConfigError(
            f"The model, its loss or its metrics cannot take the data: {first_lines(error)} "
            f"Received: x {describe(x)}, y {describe(y)}. Check model.*, loss, metrics and data.*."
        ) from error
    model.reset_metrics()
    return y_pred


def call_model(model: keras.Model, x: Any, *, training: bool) -> Any:
    """Return the model's outputs, with or without a `training` argument in its `call`."""
    if keras_adapter.calls_with_training(model):
        return model(x, training=training)
    return model(x)


def call_keeping_state(model: keras.Model, x: Any) -> Any:
    """Return the outputs for a few rows, and leave the model's state as it was.

    Recurrent layers draw a mask of dropout here, too: training would begin with the next one.
    """
    held = [v for v in unique(model.non_trainable_variables) if keras_adapter.has_value(v)]
    before = [tf.convert_to_tensor(v.value) for v in held]
    try:
        return call_model(model, x, training=False)
    finally:
        for variable, value in zip(held, before, strict=True):
            if not bool(tf.reduce_all(tf.equal(variable.value, value))):
                variable.assign(value)


def outputs_unless_uncalled(model: keras.Model, x: Any, *, is_validated: bool) -> Any:
    """Return the outputs for a few rows; `None` where a `train_step` calls parts of the model only.

    Then the model has no `call`, or one for other inputs: that of a GAN takes what its generator
    does. Plain Keras finds out only where a part is not built, or validation calls the whole.

    Raises:
        ConfigError: If the model has no `call`, and validation needs it.
    """
    calls_whole = is_validated and not keras_adapter.overrides_test_step(model)
    try:
        return call_keeping_state(model, x)
    except NotImplementedError as error:
        if calls_whole:
            raise ConfigError(
                f"Validation calls the whole model. {first_lines(error)} Received: "
                "data.validation. Give the model a call() or a test_step, or leave validation out."
            ) from error
        return None
    except (ValueError, TypeError, KeyError, tf.errors.InvalidArgumentError):
        parts = [layer for layer in keras_adapter.all_layers(model) if layer is not model]
        if calls_whole or not keras_adapter.overrides_train_step(model):
            raise
        if not parts or not all(layer.built for layer in parts):
            raise
        return None


def analyse(model: keras.Model, y_pred: Any, *, carries_seeds: bool) -> ModelStructure:
    """Return the structure of a built model; what a step writes is filled in by the probe.

    Args:
        model: A compiled model that was built on a batch.
        y_pred: Its outputs on that batch (masks tell which losses need valid-entry counts).
        carries_seeds: Whether seed states advance as in plain Keras (one replica) instead of
            being computed from the step.
    """
    metric_variables: set[int] = set()
    metrics, trackers = [], []
    tracker_ids = {id(keras_adapter.loss_tracker(model))}
    tracker_ids |= {id(e.tracker) for e in keras_adapter.loss_entries(model) if e.tracker}
    has_own_loss = keras_adapter.overrides_compute_loss(model)
    loss_tracker = keras_adapter.loss_tracker(model)
    all_metrics = list(model.metrics)
    if all(metric is not loss_tracker for metric in all_metrics):
        all_metrics.insert(0, loss_tracker)
    for metric in all_metrics:
        slots = MetricSlots(
            metric,
            tuple(metric.variables),
            tuple(np.asarray(v.numpy()) for v in metric.variables),
        )
        metric_variables |= {id(v) for v in slots.variables}
        is_tracker = id(metric) in tracker_ids and not (has_own_loss and metric is not loss_tracker)
        (trackers if is_tracker else metrics).append(slots)
    structure = ModelStructure(
        model=model,
        trainable=unique(model.trainable_variables),
        metrics=metrics,
        trackers=trackers,
        terms=() if has_own_loss else find_loss_terms(model, y_pred),
        has_own_loss=has_own_loss,
        has_synchronized_layers=any(
            getattr(layer, "synchronized", False) for layer in keras_adapter.all_layers(model)
        ),
    )
    for variable in unique(model.non_trainable_variables):
        if id(variable) in metric_variables:
            continue
        if variable.name == SEED_STATE_NAME:
            if carries_seeds:
                structure.int_states.append(variable)
            else:
                structure.seeds.append(variable)
                structure.seed_values.append(np.asarray(variable.numpy()))
        else:
            structure.frozen.append(variable)
    return structure


def move_written_states(structure: ModelStructure, written: Sequence[keras.Variable]) -> None:
    """Record which of the frozen variables a training step writes after all."""
    ids = {id(variable) for variable in written}
    for variable in [v for v in structure.frozen if id(v) in ids]:
        structure.frozen.remove(variable)
        is_float = tf.as_dtype(variable.dtype).is_floating
        (structure.float_states if is_float else structure.int_states).append(variable)


def unique(variables: Sequence[keras.Variable]) -> list[keras.Variable]:
    """Return the variables in order, each once."""
    seen: dict[int, keras.Variable] = {}
    for variable in variables:
        seen.setdefault(id(variable), variable)
    return list(seen.values())


def describe(value: Any) -> str:
    """Return shapes and dtypes of a nest of arrays in one line."""
    return str(
        keras.tree.map_structure(
            lambda leaf: f"{getattr(leaf, 'dtype', type(leaf).__name__)}{tuple(np.shape(leaf))}",
            value,
        )
    )


def first_lines(error: BaseException, limit: int = 300) -> str:
    """Return the beginning of an error message in one line, for use inside another message.

    What Keras puts around the reason (colours, the call and its arguments) is left out.
    """
    text = " ".join(without_keras_frame(str(error)).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def without_keras_frame(message: str) -> str:
    """Return an error message without the colours, the call and the arguments that Keras adds."""
    return _KERAS_FRAME.sub("", message).partition("\nArguments received by ")[0]
