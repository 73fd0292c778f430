"""Rules for single values and for values that depend on each other."""

import functools
from collections.abc import Mapping
from typing import Any

from kdist.cluster.traits import STRATEGY_NAMES, traits_of
from kdist.config.schema import Config
from kdist.config.space import read_space
from kdist.config.update_rules import check_updates
from kdist.errors import ConfigError

COMMANDS = ("train", "evaluate", "predict", "export", "plan", "program")
CLUSTER_COMMANDS = ("train", "program")  # Their tasks are those of the strategy.
COMMANDS_ON_A_RUN = ("evaluate", "predict", "export")
RANDOM, GRID, BAYESIAN, HYPERBAND = TUNERS = ("random", "grid", "bayesian", "hyperband")

_ONE_OF: Mapping[str, tuple[str, ...]] = {
    "command": COMMANDS,
    "strategy.name": STRATEGY_NAMES,
    "strategy.collective": ("auto", "ring", "nccl"),
    "strategy.placement": ("greedy_bytes", "round_robin"),
    "checkpoint.mode": ("auto", "min", "max"),
    "strategy.sparse": ("dense", "rows"),
    "tuner.name": TUNERS,
    "tuner.direction": ("min", "max"),
    "tuner.pruner": ("median",),
    "tuner.keep_checkpoints": ("best", "all"),
}
_AT_LEAST: Mapping[str, int] = {
    "seed": 0,
    "epochs": 1,
    "steps_per_epoch": 1,
    "max_steps": 1,
    "steps_per_execution": 1,
    "limit_batches": 1,
    "strategy.devices": 1,
    "strategy.partition_bytes": 1,
    "strategy.gather_bytes": 0,
    "strategy.replicas_to_aggregate": 1,
    "strategy.total_replicas": 1,
    "strategy.max_staleness": 0,
    "strategy.min_workers": 1,
    "checkpoint.every_steps": 1,
    "checkpoint.every_epochs": 1,
    "checkpoint.every_seconds": 0,
    "checkpoint.keep": 1,
    "checkpoint.copy_bytes": 0,
    "cluster.workers": 0,
    "cluster.ps": 0,
    "cluster.max_restarts": 0,
    "data.batch_size": 1,
    "data.validation_batch_size": 1,
    "data.seed": 0,
    "data.cache_bytes": 0,
    "sweep.devices_per_job": 1,
    "tuner.max_trials": 1,
    "tuner.max_epochs": 1,
    "tuner.executions_per_trial": 1,
    "tuner.parallel_trials": 1,
    "tuner.seed": 0,
    "tuner.max_retries": 0,
    "tuner.max_failures_in_a_row": 1,
    "tuner.pruner_min_trials": 1,
    "tuner.pruner_min_epochs": 1,
    "tuner.factor": 2,
    "tuner.iterations": 1,
    "tuner.num_initial_points": 1,
}
_MOST_SEED = 2**32 - 1
_A_PROCESS = "each of them is a process on this machine"
# What is far from anything that works, and would end in a strange error, or in none for long.
_AT_MOST: Mapping[str, tuple[int, str]] = {
    "seed": (_MOST_SEED, "NumPy takes no larger one"),
    "tuner.seed": (_MOST_SEED, "NumPy takes no larger one"),
    "strategy.devices": (1024, "each of them computes a share of the batch"),
    "cluster.workers": (1000, _A_PROCESS),
    "cluster.ps": (1000, _A_PROCESS),
}
_MOST_SECONDS = 1_000_000  # 11 days; the system's own waits end at 24.
_MORE_THAN_0 = ("start_timeout_s", "heartbeat_timeout_s", "chief_lost_timeout_s", "stop_grace_s")


def check(config: Config) -> None:
    """Refuse values that no run could use.

    Raises:
        ConfigError: Naming the key or keys, what came in, and what would do.
    """
    for key, known in _ONE_OF.items():
        value = _value(config, key)
        if value is not None and value not in known:
            raise ConfigError(f"{key} must be one of {', '.join(known)}. Received: {value}.")
    for key, least in _AT_LEAST.items():
        value = _value(config, key)
        if value is not None and value < least:
            raise ConfigError(f"{key} must be at least {least}. Received: {value}.")
    for key, (most, why) in _AT_MOST.items():
        value = _value(config, key)
        if value is not None and value > most:
            raise ConfigError(f"{key} must be at most {most}: {why}. Received: {value}.")
    for name in _MORE_THAN_0:
        seconds = getattr(config.cluster, name)
        if seconds is not None and not 0 < seconds <= _MOST_SECONDS:
            raise ConfigError(
                f"cluster.{name} must be more than 0 seconds, and at most {_MOST_SECONDS}. "
                f"Received: {seconds}."
            )
    _check_command(config)
    _check_strategy(config)
    _check_training(config)
    if config.tuner.name is not None:
        _check_search(config)


def _check_command(config: Config) -> None:
    if config.command in COMMANDS_ON_A_RUN and not config.run:
        raise ConfigError(
            f"command={config.command} reads a finished run. Received: run={config.run}. "
            "Give its folder: run=outputs/<date>/<time>."
        )
    if config.command == "predict" and not config.data.path:
        raise ConfigError(
            f"command=predict needs the examples. Received: data.path={config.data.path}. "
            "Give a .npz file that holds x: data.path=<file>.npz."
        )
    if config.command == "program":
        _check_program(config)


def _check_program(config: Config) -> None:
    if config.program.target is None:
        raise ConfigError(
            "command=program calls program._target_. Received: none. Name a function: "
            "program._target_=my_pkg.main."
        )
    strategy = config.strategy
    if strategy.name is None:
        return
    traits = traits_of(strategy.name, strategy.replication, strategy.update)
    if traits.is_clustered and not traits.needs_coordinator:
        raise ConfigError(
            "command=program has one client, the chief. Received: strategy="
            f"{traits.label}. Use strategy=ps with strategy.replication=in_graph, or single."
        )


def _check_strategy(config: Config) -> None:
    strategy = config.strategy
    if strategy.name is None:
        if strategy.replication or strategy.update:
            raise ConfigError(
                "strategy.replication and strategy.update belong to a strategy. Received: "
                f"strategy.replication={strategy.replication}, strategy.update={strategy.update} "
                "and no strategy. Add strategy=ps."
            )
        check_updates(strategy, None)
        return
    traits = traits_of(strategy.name, strategy.replication, strategy.update)
    check_updates(strategy, traits)
    if not traits.replicas_are_devices and (strategy.devices or 1) > 1:
        raise ConfigError(
            f"strategy={strategy.name} uses one device a task. "
            f"Received: strategy.devices={strategy.devices}. "
            "Use strategy=mirrored or strategy=multiworker for several."
        )


def _check_training(config: Config) -> None:
    if not isinstance(config.metrics, list | tuple | Mapping):
        raise ConfigError(f"metrics must be a list, as in [accuracy]. Received: {config.metrics}.")
    for index, weight in (config.class_weight or {}).items():
        if index < 0 or not weight >= 0:
            raise ConfigError(
                "class_weight maps class indices (from 0) to weights that are not negative. "
                f"Received: {index}: {weight}."
            )
    for name, callback in config.callbacks.items():
        if callback.target is None:
            raise ConfigError(
                f"callbacks.{name}._target_ is missing. Received: {callback.arguments}. Name a "
                f"class, as in ++callbacks.{name}._target_=keras.callbacks.EarlyStopping."
            )


def _check_search(config: Config) -> None:
    tuner = config.tuner
    if config.command not in ("train", "plan"):
        raise ConfigError(
            f"A search trains. Received: tuner={tuner.name} with command={config.command}. "
            "Drop one of them."
        )
    for key in ("seed", "tuner.seed"):
        value = _value(config, key)
        if value is not None and value > _MOST_SEED - tuner.executions_per_trial:
            raise ConfigError(
                f"{key} must be at most {_MOST_SEED} less tuner.executions_per_trial: each "
                f"execution of a trial has a seed of its own. Received: {key}={value}, "
                f"tuner.executions_per_trial={tuner.executions_per_trial}."
            )
    for entry in read_space(tuner.space):
        name = entry.key.lstrip("+")
        if name.split(".")[0] in ("tuner", "command", "run", "hydra"):
            raise ConfigError(f"tuner.space cannot vary {name}: it is the same in all trials.")
        if name in ("epochs", "resume") and tuner.name == HYPERBAND:
            raise ConfigError(f"tuner.space cannot vary {name}: hyperband sets it.")
    if tuner.hypermodel is not None and tuner.hypermodel.target is None:
        raise ConfigError(
            "tuner.hypermodel._target_ is missing: name a keras_tuner.HyperModel, or a function of "
            f"hyperparameters. Received: {sorted(tuner.hypermodel.arguments)}."
        )
    if tuner.pruner is not None and tuner.name == HYPERBAND:
        raise ConfigError(
            "hyperband stops hopeless trials by itself. Received: tuner=hyperband, "
            f"tuner.pruner={tuner.pruner}. Drop one of them."
        )


def _value(config: Config, key: str) -> Any:
    return functools.reduce(getattr, key.split("."), config)
