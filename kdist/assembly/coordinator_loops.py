"""The inner loops of a chief that drives workers and parameter servers as their coordinator."""

from collections.abc import Callable

import tensorflow as tf

from kdist.cluster.traits import StrategyTraits
from kdist.config.schema import Config
from kdist.config.update_rules import shares_and_replicas
from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.data import BatchSource
from kdist.distribute.loops.aggregating_loop import AggregatingLoop
from kdist.distribute.loops.coordinator_loop import CoordinatorLoop
from kdist.distribute.model.structure import ModelStructure
from kdist.errors import ConfigError


def make_coordinator_loop(
    config: Config,
    traits: StrategyTraits,
    strategy: tf.distribute.Strategy,
    structure: ModelStructure,
    layout: BucketLayout,
    *,
    source: BatchSource,
    num_workers: int,
    check_cluster: Callable[[], None],
) -> CoordinatorLoop:
    """Return the loop of a mode; see `make_engine` for the arguments."""
    if not traits.aggregates:
        return CoordinatorLoop(
            strategy,
            structure,
            layout,
            source=source,
            num_workers=num_workers,
            max_staleness=config.strategy.max_staleness,
            jit_compile=config.jit_compile,
            check_cluster=check_cluster,
        )
    num_shares, num_replicas = shares_and_replicas(config.strategy, num_workers)
    return AggregatingLoop(
        strategy,
        structure,
        layout,
        source=source,
        num_workers=num_workers,
        num_shares=num_shares,
        num_replicas=num_replicas,
        batch_size=config.data.batch_size,
        jit_compile=config.jit_compile,
        check_cluster=check_cluster,
    )


def num_shares_of(
    config: Config, traits: StrategyTraits, *, num_replicas: int, num_workers: int
) -> int:
    """Return the parts that a batch is split into.

    Args:
        config: The checked configuration.
        traits: Of the mode.
        num_replicas: Replicas of this strategy in sync.
        num_workers: Workers that compute.

    Raises:
        ConfigError: If there are fewer workers than an update needs.
    """
    if not traits.aggregates:
        return num_replicas
    return shares_and_replicas(config.strategy, num_workers)[0]


def aggregation_notes(config: Config, num_workers: int) -> list[str]:
    """Return what a user should know about backup workers."""
    num_shares, num_replicas = shares_and_replicas(config.strategy, num_workers)
    if num_shares == num_replicas:
        return []
    return [
        f"The first {num_shares} shares of {num_replicas} workers make an update; others are "
        "dropped, and their rows are dealt again."
    ]


def refuse_what_shares_cannot_train(
    structure: ModelStructure, num_shares: int, source: BatchSource, traits: StrategyTraits
) -> None:
    """Refuse what needs the whole batch, or gives none, while it is computed in parts.

    Raises:
        ConfigError: Naming what it is.
    """
    if traits.has_followers and source.kind == "per_worker":
        raise ConfigError(
            "Synchronous workers need shares of one global batch. Received: a function of "
            "tf.distribute.InputContext, whose batches are each worker's own. Return arrays or a "
            "tf.data.Dataset, or use strategy.update=async."
        )
    if structure.has_synchronized_layers and num_shares > 1:
        raise ConfigError(
            "BatchNormalization(synchronized=True) needs the global batch, of which each worker "
            f"computes a share. Received: strategy.update=sync, {num_shares} shares. Use "
            "synchronized=False, strategy.replicas_to_aggregate=1, or strategy=multiworker."
        )
