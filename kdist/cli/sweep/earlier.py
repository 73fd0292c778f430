"""What an earlier try of the same sweep left in a job's folder, and what to do with it."""

from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any

import yaml

from kdist.config.dotted import flattened
from kdist.config.reading import known_keys
from kdist.errors import ConfigError, KdistError
from kdist.records.result import COMPLETED, read_result
from kdist.records.run_folder import RunFolder

# What is null in a job's configuration and then decided by the run.
_DECIDED = ("seed", "strategy.name")
# What a run can be told anew without being another run.
_MAY_CHANGE = ("verbose", "debug", "resume", "resume_force", "sweep")
_SHOWN_KEYS = 3


class Earlier(Enum):
    """The three states of a job's folder."""

    NOTHING = auto()
    UNFINISHED = auto()
    COMPLETED = auto()


def look_at(run_dir: Path, config: Mapping[str, Any]) -> Earlier:
    """Return what a job's folder holds.

    Args:
        run_dir: The folder; it need not exist.
        config: What config.yaml of the job would be.

    Raises:
        ConfigError: If it holds a run with another configuration.
    """
    folder = RunFolder(run_dir)
    if not folder.holds_run():
        return Earlier.NOTHING
    saved = _read(folder.config_yaml)
    differing = [] if saved is None else differences(saved, config)
    if differing:
        more = len(differing) - _SHOWN_KEYS
        raise ConfigError(
            f"The folder of this job holds another run: {'; '.join(differing[:_SHOWN_KEYS])}"
            f"{f'; and {more} more' if more > 0 else ''}. Received: {run_dir}. Choose another "
            "folder for the sweep (hydra.sweep.dir=...)."
        )
    try:
        is_completed = read_result(folder.result_json)["status"] == COMPLETED
    except KdistError:
        is_completed = False
    return Earlier.COMPLETED if is_completed else Earlier.UNFINISHED


def differences(saved: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Return in what a saved configuration differs from one that is asked for, a text a key.

    Keys that an older kdist did not have are no difference.
    """
    before, now = flattened(saved), flattened(asked)
    compared = dict.fromkeys(key for key in [*now, *before] if not _is_ignored(key, before, now))
    return [
        f"{key} was {before.get(key)}, is {now.get(key)}"
        for key in compared
        if before.get(key) != now.get(key)
    ]


def _is_ignored(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    is_new = key not in before and key in known_keys()
    is_decided = key in _DECIDED and now.get(key) is None
    return is_new or is_decided or key.partition(".")[0] in _MAY_CHANGE


def _read(config_yaml: Path) -> Mapping[str, Any] | None:
    try:
        content = yaml.safe_load(config_yaml.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return content if isinstance(content, dict) else None
