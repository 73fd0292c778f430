"""What a mode cannot train exactly: refused by name before training, or told."""

from collections.abc import Iterable

import keras

from kdist.assembly.built_model import BuiltModel
from kdist.assembly.coordinator_loops import refuse_what_shares_cannot_train
from kdist.assembly.fixed_batches import refuse_other_sizes
from kdist.assembly.label_rules import label_rules
from kdist.cluster.traits import StrategyTraits
from kdist.config.schema import Config
from kdist.distribute import keras_adapter
from kdist.distribute.buckets.valueless_tables import answering_for_tables
from kdist.distribute.data import BatchSource
from kdist.distribute.model.structure import ModelStructure, call_keeping_state
from kdist.distribute.step.separability import check_separable
from kdist.errors import ConfigError


def refuse_inexact(
    built: BuiltModel,
    config: Config,
    traits: StrategyTraits,
    train: BatchSource,
    validation: BatchSource | None,
    *,
    num_replicas: int,
    num_shares: int,
) -> None:
    """Refuse what the mode cannot train as one device does, and labels that do not fit.

    Args:
        built: The model, whose tables by rows are chosen.
        config: The checked configuration.
        traits: Of the mode.
        train: The training data.
        validation: The validation data, if there is any.
        num_replicas: Replicas that compute at once.
        num_shares: Shares of a batch, each computed by one replica.

    Raises:
        ConfigError: Naming what it is.
    """
    structure, model = built.structure, built.model
    _refuse_integer_states(structure, traits)
    for each in (train, validation):
        if each is not None:
            each.expect_labels(label_rules(model, built.y_pred))
    if not built.takes_any_rows:
        refuse_other_sizes(model, config.data, train, validation, num_shares=num_shares)
    check_separable(
        structure,
        built.x,
        built.y,
        built.sample_weight,
        built.y_pred,
        splits_batches=num_shares > 1,
        takes_any_rows=built.takes_any_rows,
    )
    if traits.aggregates:
        refuse_what_shares_cannot_train(structure, num_shares, train, traits)
    if structure.has_synchronized_layers and num_replicas > 1:
        _refuse_beside_synchronized(structure, config, num_replicas)


def _refuse_integer_states(structure: ModelStructure, traits: StrategyTraits) -> None:
    if structure.int_states and traits.has_servers:
        names = ", ".join(v.path for v in structure.int_states)
        raise ConfigError(
            "Workers of parameter servers cannot agree on an integer that every step writes. "
            f"Received: {names}. Use a synchronous strategy, or a float variable."
        )


def _refuse_beside_synchronized(
    structure: ModelStructure, config: Config, num_replicas: int
) -> None:
    if config.jit_compile:
        raise ConfigError(
            "jit_compile=true cannot compile BatchNormalization(synchronized=True), whose sums "
            f"cross {num_replicas} replicas. Use jit_compile=false or synchronized=False."
        )
    if structure.has_own_loss:
        raise ConfigError(
            f"{type(structure.model).__name__} overrides compute_loss and has a synchronized "
            f"layer: parts of its loss would be divided by {num_replicas} replicas, others not. "
            "Use synchronized=False, or losses given to compile() and add_loss."
        )


def lost_logs_of(built: BuiltModel) -> tuple[str, ...]:
    """Return a warning of what a model's own `compute_metrics` returns and no metric holds."""
    model = built.model
    if not keras_adapter.overrides_compute_metrics(model):
        return ()
    returned = model.compute_metrics(
        built.x, built.y, built.y_pred, sample_weight=built.sample_weight
    )
    lost = sorted({*(returned or ())} - {*model.get_metrics_result()})
    model.reset_metrics()
    if not lost:
        return ()
    return (
        f"{type(model).__name__}.compute_metrics returns what no metric holds, and what therefore "
        f"is not logged: {', '.join(lost)}. Make a keras.metrics.Metric of each.",
    )


def normalization_notes(built: BuiltModel, num_replicas: int) -> list[str]:
    """Return which layers normalize the rows of each replica by themselves."""
    written = {id(variable) for variable in built.structure.float_states}
    layers = [
        layer
        for layer in keras_adapter.all_layers(built.model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and id(layer.moving_mean) in written  # A frozen one normalizes all rows alike.
    ]
    if not layers or num_replicas == 1:
        return []
    notes = []
    if alone := [layer.name for layer in layers if not layer.synchronized]:
        notes.append(
            f"BatchNormalization normalizes each replica's rows by themselves ({_few(alone)}); "
            "synchronized=True normalizes the global batch."
        )
    synchronized = [layer for layer in layers if layer.synchronized]
    with (
        answering_for_tables(built.model),
        keras_adapter.called_with_masks(synchronized) as masked,
    ):
        if synchronized:
            call_keeping_state(built.model, built.x)
    if masked:
        notes.append(
            "BatchNormalization normalizes each replica's rows by themselves where its input has "
            f"a mask: Keras synchronizes nothing there ({_few(layer.name for layer in masked)})."
        )
    return notes


def _few(names: Iterable[str]) -> str:
    first, *others = names
    shown = [first, *others[:2]]
    return ", ".join(shown) + (", ..." if len(others) > 2 else "")
