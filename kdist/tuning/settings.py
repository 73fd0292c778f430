"""What may not change while a search goes on. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from kdist.config.dotted import flattened

_FREE = (
    "command",
    "run",
    "resume",
    "resume_force",
    "verbose",
    "debug",
    "plan",
    "sweep",
    "cluster",
    "checkpoint",
    "tuner.max_trials",
    "tuner.parallel_trials",
    "tuner.max_retries",
    "tuner.max_failures_in_a_row",
    "tuner.keep_checkpoints",
)
_ABSENT = object()
_MAX_SHOWN = 8


def settings_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return, by dotted key, everything that makes trials comparable, in JSON's own values."""
    flat = flattened(content)
    kept = {key: value for key, value in flat.items() if not _is_free(key)}
    return json.loads(json.dumps(kept, default=str))


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return what differs, key by key; `None` if nothing does."""
    lines = [
        f"{key} ({_shown(before.get(key, _ABSENT))} before, {_shown(now.get(key, _ABSENT))} now)"
        for key in dict.fromkeys([*before, *now])
        if before.get(key, _ABSENT) != now.get(key, _ABSENT)
    ]
    if not lines:
        return None
    more = f", and {len(lines) - _MAX_SHOWN} more" if len(lines) > _MAX_SHOWN else ""
    return ", ".join(lines[:_MAX_SHOWN]) + more


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in _FREE)


def _shown(value: Any) -> str:
    return "not there" if value is _ABSENT else json.dumps(value)
