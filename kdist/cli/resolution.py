"""Resolving interpolations: fully for the tasks, and without secrets for config.yaml."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.resolvers import oc

from kdist.cli.hydra_errors import explained


def resolved(tree: DictConfig) -> dict[str, Any]:
    """Return plain containers with every interpolation resolved.

    Raises:
        ConfigError: If a value is missing, or an interpolation leads nowhere.
    """
    with explained({}):
        content = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def yaml_without_secrets(tree: DictConfig) -> str:
    """Return the tree as YAML, resolved except for what comes from the environment.

    What reads `${oc.env:...}`, at any remove, keeps its interpolation, so that no secret is
    written to disk.
    """
    with explained({}), _watched_environment() as reads:
        return OmegaConf.to_yaml(OmegaConf.create(_public(tree, reads)))


def _public(node: DictConfig | ListConfig, reads: list[str]) -> Any:
    """Return plain containers in which values from the environment stay interpolations."""
    raw = OmegaConf.to_container(node, resolve=False)
    keys = list(raw) if isinstance(raw, dict) else range(len(raw))  # type: ignore[arg-type]
    values = {key: _public_value(node, key, raw[key], reads) for key in keys}  # type: ignore[index]
    return values if isinstance(raw, dict) else list(values.values())


def _public_value(node: Any, key: Any, raw: Any, reads: list[str]) -> Any:
    if OmegaConf.is_missing(node, key):
        return raw
    if OmegaConf.is_interpolation(node, key):
        reads.clear()
        value = node[key]
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        return raw if reads else value
    value = node[key]
    return _public(value, reads) if OmegaConf.is_config(value) else value


@contextmanager
def _watched_environment() -> Iterator[list[str]]:
    """Record which variables `oc.env` reads."""
    reads: list[str] = []

    def read(*name_and_default: Any) -> str | None:
        reads.append(str(name_and_default[0]))
        return oc.env(*name_and_default)

    OmegaConf.register_new_resolver("oc.env", read, replace=True)
    try:
        yield reads
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
