"""Puts model, data and strategy together into the inner loop of a mode."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kdist.assembly.coordinator_loops import (
    aggregation_notes,
    make_coordinator_loop,
    num_shares_of,
    refuse_what_shares_cannot_train,
)
from kdist.assembly.fixed_batches import refuse_other_sizes, rows_to_build_on, takes_any_rows
from kdist.assembly.label_rules import label_rules
from kdist.assembly.layouts import forgotten_exclusions, plan_layout, variable_infos
from kdist.assembly.row_tables import choose_row_tables, refuse_own_steps
from kdist.cluster.traits import StrategyTraits
from kdist.config.schema import Config
from kdist.distribute import keras_adapter
from kdist.distribute.buckets.bucket_plan import plan_buckets
from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.buckets.valueless_tables import release
from kdist.distribute.data import BatchSource
from kdist.distribute.loops.inner_loop import InnerLoop, OwnState
from kdist.distribute.loops.own_step_loop import OwnStepLoop
from kdist.distribute.loops.sync_loop import SyncLoop
from kdist.distribute.model.probe import has_own_steps, probe_training_step, refuse_custom_steps
from kdist.distribute.model.step_types import none_if_empty
from kdist.distribute.model.structure import (
    ModelStructure,
    analyse,
    build_on_batch,
    outputs_unless_uncalled,
)
from kdist.distribute.shares import WorkerShare
from kdist.distribute.step.replica_step import ReplicaStep
from kdist.distribute.step.separability import check_separable
from kdist.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What trains: the loop and what it was made of."""

    loop: InnerLoop
    structure: ModelStructure
    layout: BucketLayout
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    own_state: OwnState | None = None


def make_engine(
    config: Config,
    traits: StrategyTraits,
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    source: BatchSource,
    *,
    share: WorkerShare,
    num_servers: int,
    num_workers: int,
    check_cluster: Callable[[], None],
    after_build: Callable[[keras.Model], None] = lambda model: None,
    make_client_loop: Callable[[ModelStructure, BucketLayout], InnerLoop] | None = None,
    validation: BatchSource | None = None,
) -> Engine:
    """Build the model on the data, check that it can be trained exactly, and make its loop.

    Args:
        config: The checked configuration.
        traits: Of the mode.
        strategy: From `make_strategy`.
        model: A compiled model.
        source: The training data.
        share: This worker's position (synchronous modes).
        num_servers: Parameter servers; 0 for none.
        num_workers: Workers that compute.
        check_cluster: Raises when waiting for workers has no sense any more.
        after_build: Called with the built model, before the store takes its values.
        make_client_loop: Makes the loop of a task that is a client of the servers by itself.
        validation: The validation data, whose labels are checked like those of training.

    Raises:
        ConfigError: If model and data do not fit, or the mode cannot train the model exactly.
    """
    num_replicas = share.num_replicas if not traits.has_servers else num_workers
    refuse_custom_steps(
        model,
        num_replicas=num_replicas,
        allowed=config.strategy.allow_custom_train_step,
        in_one_process=not traits.has_servers and share.num_workers == 1,
    )
    if has_own_steps(model):
        return _own_step_engine(
            config, strategy, model, source, share, after_build, is_validated=validation is not None
        )
    x, y, sample_weight = source.first_batch(rows_to_build_on(model))
    weights = none_if_empty(sample_weight)
    y_pred = build_on_batch(
        model,
        x,
        y,
        weights,
        explain=lambda y_pred: source.expect_labels(label_rules(model, y_pred)),
    )
    any_rows = takes_any_rows(model, x)
    release(model)
    after_build(model)
    carries_seeds = num_replicas == 1 and not traits.has_servers and not config.jit_compile
    structure = analyse(model, y_pred, carries_seeds=carries_seeds)
    probe_training_step(structure, source.element_spec)
    table_notes = choose_row_tables(
        config, structure, source.element_spec[0], values_on_servers=traits.has_servers
    )
    _refuse_integer_states(structure, traits)
    for each in (source, validation):
        if each is not None:
            each.expect_labels(label_rules(model, y_pred))
    num_shares = num_shares_of(
        config, traits, num_replicas=share.num_replicas, num_workers=num_workers
    )
    if not any_rows:
        refuse_other_sizes(model, config.data, source, validation, num_shares=num_shares)
    check_separable(
        structure, x, y, weights, y_pred, splits_batches=num_shares > 1, takes_any_rows=any_rows
    )
    lost_logs = _lost_logs(model, x, y, y_pred, weights)
    if traits.aggregates:
        refuse_what_shares_cannot_train(structure, num_shares, source, traits)
    if structure.has_synchronized_layers and config.jit_compile and num_replicas > 1:
        raise ConfigError(
            "jit_compile=true cannot compile BatchNormalization(synchronized=True), whose sums "
            f"cross {num_replicas} replicas. Use jit_compile=false or synchronized=False."
        )
    if structure.has_synchronized_layers and structure.has_own_loss and num_replicas > 1:
        raise ConfigError(
            f"{type(model).__name__} overrides compute_loss and has a synchronized layer: parts of "
            f"its loss would be divided by {num_replicas} replicas, others not. Use synchronized="
            "False, or losses given to compile() and add_loss."
        )
    layout = plan_layout(config, structure, num_servers=num_servers)
    if make_client_loop is not None:
        loop: InnerLoop = make_client_loop(structure, layout)
    elif traits.needs_coordinator:
        loop = make_coordinator_loop(
            config,
            traits,
            strategy,
            structure,
            layout,
            source=source,
            num_workers=num_workers,
            check_cluster=check_cluster,
        )
    else:
        step = ReplicaStep(
            strategy,
            structure,
            layout,
            share=share,
            source=source,
            jit_compile=config.jit_compile,
        )
        loop = SyncLoop(step, source)
    notes = [*_normalization_notes(structure, num_replicas), *table_notes]
    if traits.aggregates:
        notes += aggregation_notes(config, num_workers)
    return Engine(
        loop=loop,
        structure=structure,
        layout=layout,
        notes=tuple(notes),
        warnings=(*forgotten_exclusions(structure), *lost_logs),
    )


def _own_step_engine(
    config: Config,
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    source: BatchSource,
    share: WorkerShare,
    after_build: Callable[[keras.Model], None],
    *,
    is_validated: bool,
) -> Engine:
    """Return the engine of a model whose `train_step` or `test_step` is its own."""
    x, y, sample_weight = source.first_batch(rows_to_build_on(model))
    y_pred = outputs_unless_uncalled(model, x, is_validated=is_validated)
    if share.num_replicas > 1 and y_pred is not None:
        # What compile() was given may make its variables in the first step, where no replica could
        # have its own. A step need not use it, nor the data suit it.
        with contextlib.suppress(ConfigError):
            build_on_batch(model, x, y, none_if_empty(sample_weight))
    release(model)
    after_build(model)
    structure = analyse(model, y_pred, carries_seeds=True)
    refuse_own_steps(config, structure)
    layout = plan_buckets(variable_infos(structure), can_flatten=False)
    loop = OwnStepLoop(
        strategy, model, layout, share=share, source=source, jit_compile=config.jit_compile
    )
    notes: tuple[str, ...] = ()
    if share.num_replicas > 1:
        notes = (
            f"{type(model).__name__} runs its own train_step on each replica's rows: its updates "
            "may depend on how a batch is split, its gradients may be summed instead of averaged, "
            f"and a batch of fewer than {share.num_replicas} rows is trained by every replica.",
        )
    return Engine(loop=loop, structure=structure, layout=layout, notes=notes, own_state=loop)


def _lost_logs(model: keras.Model, x: Any, y: Any, y_pred: Any, weights: Any) -> tuple[str, ...]:
    """Return a warning of what a model's own `compute_metrics` returns and no metric holds."""
    if not keras_adapter.overrides_compute_metrics(model):
        return ()
    returned = model.compute_metrics(x, y, y_pred, sample_weight=weights)
    lost = sorted({*(returned or ())} - {*model.get_metrics_result()})
    model.reset_metrics()
    if not lost:
        return ()
    return (
        f"{type(model).__name__}.compute_metrics returns what no metric holds, and what therefore "
        f"is not logged: {', '.join(lost)}. Make a keras.metrics.Metric of each.",
    )


def _refuse_integer_states(structure: ModelStructure, traits: StrategyTraits) -> None:
    if structure.int_states and traits.has_servers:
        names = ", ".join(v.path for v in structure.int_states)
        raise ConfigError(
            "Workers of parameter servers cannot agree on an integer that every step writes. "
            f"Received: {names}. Use a synchronous strategy, or a float variable."
        )


def _normalization_notes(structure: ModelStructure, num_replicas: int) -> list[str]:
    written = {id(variable) for variable in structure.float_states}
    layers = [
        layer.name
        for layer in keras_adapter.all_layers(structure.model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and not layer.synchronized
        and id(layer.moving_mean) in written  # A frozen one normalizes all rows alike.
    ]
    if not layers or num_replicas == 1:
        return []
    return [
        f"BatchNormalization normalizes each replica's rows by themselves ({', '.join(layers[:3])}"
        f"{', ...' if len(layers) > 3 else ''}); synchronized=True normalizes the global batch."
    ]
