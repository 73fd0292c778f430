"""Whether all tasks were started with the same configuration; decisions and texts only."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task
from kdist.version import __version__

FlatConfig = Mapping[str, Any]

_ABSENT = object()
_MAX_SHOWN = 60
_MAX_KEYS = 8


def comparable(config_flat: FlatConfig, spec: ClusterSpec) -> dict[str, Any]:
    """Return everything that must be equal on all tasks: configuration, cluster, version."""
    extra = {"TF_CONFIG cluster": spec.as_dict(), "kdist version": __version__}
    return json.loads(json.dumps({**config_flat, **extra}, default=str))


def digest(comparable_config: FlatConfig) -> str:
    """Return a digest that is equal where everything is equal."""
    content = json.dumps(comparable_config, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def describe_differences(chief: Task, own: FlatConfig, others: Mapping[Task, FlatConfig]) -> str:
    """Return one line that names each differing key, with every task's value of it."""
    values: dict[str, list[str]] = {}
    for task, other in sorted(others.items()):
        for key in sorted({*own, *other}):
            mine, theirs = own.get(key, _ABSENT), other.get(key, _ABSENT)
            if mine != theirs:
                values.setdefault(key, [f"{chief} has {_shown(mine)}"])
                values[key].append(f"{task} has {_shown(theirs)}")
    lines = [f"{key} ({', '.join(held)})" for key, held in values.items()]
    more = f"; and {len(lines) - _MAX_KEYS} more keys" if len(lines) > _MAX_KEYS else ""
    return (
        "The tasks were started with different configurations. Received: "
        f"{'; '.join(lines[:_MAX_KEYS])}{more}. Start every task with the same arguments and the "
        "same kdist."
    )


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "no such key"
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
