"""Puts model, data and strategy together into the inner loop of a mode."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import keras
import tensorflow as tf

from kdist.assembly.built_model import build_on_data
from kdist.assembly.coordinator_loops import (
    aggregation_notes,
    make_coordinator_loop,
    num_shares_of,
)
from kdist.assembly.exactness import lost_logs_of, normalization_notes, refuse_inexact
from kdist.assembly.fixed_batches import rows_to_build_on
from kdist.assembly.layouts import forgotten_exclusions, plan_layout, variable_infos
from kdist.assembly.row_tables import choose_row_tables, refuse_own_steps
from kdist.cluster.traits import StrategyTraits
from kdist.config.schema import Config
from kdist.distribute.buckets.bucket_plan import plan_buckets
from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.buckets.valueless_tables import release
from kdist.distribute.data import BatchSource
from kdist.distribute.loops.inner_loop import InnerLoop, OwnState
from kdist.distribute.loops.own_step_loop import OwnStepLoop
from kdist.distribute.loops.sync_loop import SyncLoop
from kdist.distribute.model.probe import has_own_steps, refuse_custom_steps
from kdist.distribute.model.step_types import none_if_empty
from kdist.distribute.model.structure import (
    ModelStructure,
    analyse,
    build_on_batch,
    outputs_unless_uncalled,
)
from kdist.distribute.shares import WorkerShare
from kdist.distribute.step.replica_step import ReplicaStep
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
    carries_seeds = num_replicas == 1 and not traits.has_servers and not config.jit_compile
    built = build_on_data(model, source, after_build=after_build, carries_seeds=carries_seeds)
    structure = built.structure
    table_notes = choose_row_tables(
        config, structure, source.element_spec[0], values_on_servers=traits.has_servers
    )
    num_shares = num_shares_of(
        config, traits, num_replicas=share.num_replicas, num_workers=num_workers
    )
    refuse_inexact(
        built,
        config,
        traits,
        source,
        validation,
        num_replicas=num_replicas,
        num_shares=num_shares,
    )
    lost_logs = lost_logs_of(built)
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
    notes = [*normalization_notes(built, num_replicas), *table_notes]
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
