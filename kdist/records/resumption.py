"""What a run folder holds already, and what a new start in it means: decided without TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import yaml

from kdist.config.dotted import flattened
from kdist.config.schema import GIVEN, Config
from kdist.errors import ConfigError, KdistError
from kdist.records.result import COMPLETED, read_result
from kdist.records.run_folder import (
    RunFolder,
    RunFolderTakenError,
    refuse_in_use,
    refuse_used,
)

# Values of `resume` that are no path.
AUTO = "auto"
NEVER = "never"
# Sections and keys that must stay, and those of them that a run can be told anew.
_COMPARED = (
    *("model", "data", "optimizer", "loss", "metrics", "class_weight", "seed"),
    *("steps_per_epoch", "limit_batches"),
)
_MAY_CHANGE = ("data.cache_bytes", "data.validation_batch_size")
_SHOWN = 4


class Start(Enum):
    """What to do in a run folder."""

    NEW = auto()  # No run is there.
    CONTINUE = auto()  # A run is there that is not finished: go on where it was.
    FINISHED = auto()  # The run is there, and finished.


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the user asks of a run folder.

    Attributes:
        run_dir: The folder.
        config: The checked configuration.
        config_yaml: The content of its config.yaml.
        attempt: How many times this run was started before by whoever watches over it.
        is_new_name: Whether the folder's name is kdist's own choice and means nothing.
    """

    run_dir: Path
    config: Config
    config_yaml: str
    attempt: int = 0
    is_new_name: bool = False


def decide(wish: Wish) -> Start:
    """Return what to do in a run folder; nothing is written.

    Raises:
        ConfigError: If the folder holds a run that must not go on, or cannot.
    """
    folder = RunFolder(wish.run_dir)
    if wish.attempt == 0 and (wish.is_new_name or wish.config.resume == NEVER):
        if not wish.is_new_name:
            refuse_used(folder.path)
        return Start.NEW
    if not folder.holds_run():
        return Start.NEW
    if wish.attempt > 0:
        return Start.CONTINUE
    if wish.config.resume == AUTO and not wish.config.resume_force:
        _refuse_differences(folder, wish.config_yaml)
    result = _result(folder)
    if result is None or result.get("status") != COMPLETED:
        return Start.CONTINUE
    if _total(wish.config, result) <= _total_before(folder, result):
        return Start.FINISHED
    if wish.config.resume == AUTO and not (
        folder.checkpoints.exists() or wish.config.checkpoint.dir
    ):
        raise RunFolderTakenError(
            "The run there is finished and kept no checkpoint to go on from. Received: "
            f"{folder.path}. Choose another folder (hydra.run.dir=...), and take its weights: "
            f"init_from={folder.path}."
        )
    return Start.CONTINUE


def is_finished(wish: Wish) -> bool:
    """Return whether there is nothing to do; to be asked before the first process starts.

    Raises:
        ConfigError: If the folder is in use, or holds a run that must not go on, or cannot.
    """
    if not wish.is_new_name:
        refuse_in_use(wish.run_dir)
    return decide(wish) is Start.FINISHED


def finished_text(run_dir: Path) -> str:
    """Return the line that tells the user that there is nothing to do."""
    return f"The run in {run_dir} is finished. More epochs would go on with it (epochs=...)."


def beyond_wish(batches_seen: int, total_steps: int, config: Config) -> str | None:
    """Return how far a run is beyond what is asked for, or `None` where it is not.

    Args:
        batches_seen: Batches that its checkpoint has trained.
        total_steps: Batches that are asked for now.
        config: The checked configuration, which asks for them.
    """
    if batches_seen <= total_steps:
        return None
    key = "max_steps" if config.max_steps == total_steps else "epochs"
    asked = f"{total_steps} were asked for ({key}={getattr(config, key)})"
    return f"{batches_seen} batches, where {asked}"


def further_text(run_dir: Path, beyond: str) -> str:
    """Return the line that tells the user that a run is beyond what is asked for."""
    return (
        f"The run in {run_dir} has already trained further: {beyond}. Nothing was done. "
        "More epochs would go on with it (epochs=...)."
    )


def folder_of(path: Path | str) -> Path:
    """Return the run folder of a run that is named by its folder, its model or a checkpoint."""
    named = Path(path)
    if named.parent.name == "checkpoints":
        return named.parent.parent
    return named if named.is_dir() else named.parent


def settings_of(config_yaml: str) -> dict[str, Any]:
    """Return the settings, by dotted key, that must be the same when a run goes on."""
    try:
        content = yaml.safe_load(config_yaml)
    except (ValueError, yaml.YAMLError):
        content = None
    if not isinstance(content, Mapping):
        return {}
    given = content.get(GIVEN)
    flat = flattened({**content, **(given if isinstance(given, Mapping) else {})})
    return {
        key: value
        for key, value in flat.items()
        if key.partition(".")[0] in _COMPARED and key not in _MAY_CHANGE
    }


def seed_of_run(run_dir: Path, drawn: int) -> int:
    """Return the seed of the run that a folder holds, or the one drawn for a new run."""
    try:
        seed = yaml.safe_load(RunFolder(run_dir).config_yaml.read_text(encoding="utf-8"))["seed"]
        return int(seed)
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError):
        return drawn


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs, a text an entry; a mapping without entries knows nothing to compare."""
    if not before or not now:
        return []
    return [
        f"{key} was {_shown(before, key)}, is {_shown(now, key)}"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]


def refuse(found: list[str], where: str | Path) -> None:
    """Refuse to go on with something else than what was begun.

    Raises:
        ConfigError: If `found` names a difference.
    """
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ConfigError(
            f"The run to go on with was another one: {'; '.join(found[:_SHOWN])}{more}. Received: "
            f"{where}. Give the same settings, choose another folder (hydra.run.dir=...) for "
            "a new run, or go on all the same: resume_force=true."
        )


def _refuse_differences(folder: RunFolder, config_yaml: str) -> None:
    try:
        before = settings_of(folder.config_yaml.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return
    refuse(differences(before, settings_of(config_yaml)), folder.path)


def _shown(settings: Mapping[str, Any], key: str) -> str:
    text = str(settings[key]) if key in settings else "not set"
    return text if len(text) <= 60 else text[:57] + "..."


def _result(folder: RunFolder) -> dict[str, Any] | None:
    try:
        return read_result(folder.result_json)
    except KdistError:
        return None


def _total(config: Config, result: Mapping[str, Any]) -> float:
    """Return the batches that are asked for now."""
    steps = config.steps_per_epoch or result.get("steps_per_epoch") or 0
    return min(config.epochs * steps, config.max_steps or float("inf"))


def _total_before(folder: RunFolder, result: Mapping[str, Any]) -> float:
    """Return the batches that the finished run was asked for."""
    asked = (result.get("epochs") or 0) * (result.get("steps_per_epoch") or 0)
    try:
        content = yaml.safe_load(folder.config_yaml.read_text(encoding="utf-8"))
        limit = content.get("max_steps") if isinstance(content, Mapping) else None
    except (OSError, ValueError, yaml.YAMLError):
        limit = None
    return min(asked, limit or float("inf"))
