"""What a trial's runs are told beside its values. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kdist.config.schema import Config, TargetConfig
from kdist.config.space import DEFAULT_SPACE, Hyperparameter, read_space

_BUILD = "kdist.tuning.hypermodel.build"


def space_of(config: Config) -> tuple[Hyperparameter, ...]:
    """Return the space of a search; one that names nothing looks for the learning rate."""
    tuner = config.tuner
    asks_nothing = not tuner.space and tuner.hypermodel is None
    return read_space(DEFAULT_SPACE if asks_nothing else tuner.space)


def split_values(
    space: Sequence[Hyperparameter], values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of configuration keys, and those of a hypermodel."""
    keys = {entry.key for entry in space}
    return (
        {name: value for name, value in values.items() if name in keys},
        {name: value for name, value in values.items() if name not in keys},
    )


def run_settings(
    config: Config,
    *,
    epochs: int,
    run_name: str = "",
    execution: int = 1,
    resume: str | None = None,
    hypermodel_values: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the keys that a search sets in one run of a trial.

    Args:
        config: The search's configuration.
        epochs: Epochs to reach.
        run_name: The name of the run's folder.
        execution: Which run of the trial it is, from 1; each has a seed of its own.
        resume: The run, or `auto` for the folder's own, to go on from.
        hypermodel_values: Values of the hypermodel's hyperparameters, where there is one.
    """
    settings: dict[str, Any] = {"epochs": epochs}
    if execution > 1 and config.seed is not None:
        settings["seed"] = config.seed + execution - 1
    if resume is not None:
        settings["resume"] = resume
    if config.checkpoint.dir is not None:  # Which all of them would share.
        settings["checkpoint.dir"] = checkpoint_dir(config.checkpoint.dir, run_name)
    if config.tuner.hypermodel is not None:
        settings["model"] = _model_section(config.tuner.hypermodel, hypermodel_values or {})
    return settings


def checkpoint_dir(parent: str, run_name: str) -> str:
    """Return where a run's checkpoints go, where the search's configuration names a place."""
    return f"{parent.rstrip('/')}/{run_name}"


def _model_section(section: TargetConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `model` section of a run whose model a hypermodel builds."""
    return {
        "_target_": _BUILD,
        "hypermodel": section.target,
        "values": dict(values),
        "arguments": dict(section.arguments),
    }


def run_name(trial: str, execution: int, attempt: int) -> str:
    """Return the name of a run's folder: `0003`, `0003-run2`, `0003-run2-retry1`, ..."""
    parts = [trial]
    parts += [f"run{execution}"] if execution > 1 else []
    parts += [f"retry{attempt}"] if attempt else []
    return "-".join(parts)
