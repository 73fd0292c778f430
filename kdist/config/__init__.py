"""The configuration: schema, cross-field rules, targets by name. Imports no TensorFlow."""

from collections.abc import Mapping
from typing import Any

from kdist.config import reading, rules
from kdist.config.schema import Config


def load(content: Mapping[str, Any]) -> Config:
    """Return the checked configuration: the one gate that every run passes.

    Args:
        content: Plain containers with all interpolations resolved. Absent keys take their
            defaults.

    Raises:
        ConfigError: Naming the key, what came in, and what to do.
    """
    reading.refuse_endless_numbers(content)
    config = reading.read(Config, _with_lists(content))
    rules.check(config)
    return config


def _with_lists(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy in which `metrics` is a list (or mapping): null is none, a name is one."""
    metrics = content.get("metrics")
    is_one = isinstance(metrics, str) or (isinstance(metrics, Mapping) and "_target_" in metrics)
    return {**content, "metrics": [metrics] if is_one else metrics or []}
