"""Hydra's and OmegaConf's refusals, in kdist's words."""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from kdist.config.reading import known_keys, unknown_key
from kdist.errors import ConfigError

# Options that come with an extra.
_OPTIONAL = {"hydra/sweeper/optuna": " optuna comes with: pip install 'kdist[optuna]'."}
_FREE_SECTIONS = ("data", "model", "optimizer", "callbacks", "loss")


@contextlib.contextmanager
def explained(groups: Mapping[str, Collection[str]]) -> Iterator[None]:
    """Turn every refusal to compose into one `ConfigError`.

    Args:
        groups: The options of each group, to suggest a name for a misspelt one.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, groups) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"A configuration file is not valid YAML. {_one_line(error)}") from error


def explain(error: Exception, groups: Mapping[str, Collection[str]]) -> ConfigError:
    """Return what Hydra refused, why, and what to do."""
    if isinstance(error, MissingConfigException):
        return _missing_file(error)
    message = str(error)
    unknown = re.search(r"Could not (?:override|append) '(?P<key>[^']+)'", message)
    if unknown:
        return _unknown_key(unknown["key"], groups)
    deleted = re.search(r"Could not delete.*'(?P<key>[^']+)' does not exist", message)
    if deleted:
        return unknown_key(deleted["key"])
    ambiguous = re.search(r"Ambiguous value for argument '(?P<override>.+)'", message)
    if ambiguous:
        return ConfigError(
            f"{ambiguous['override']} holds several values. Add -m to run each of them, write "
            "[a,b] for a list, or quote a text that has a comma in it."
        )
    full_key = getattr(error, "full_key", None) or ""
    if isinstance(error, MissingMandatoryValue):
        return ConfigError(f"{full_key} has no value. Add {full_key}=...")
    if full_key and not full_key.startswith("hydra."):
        return ConfigError(f"{full_key}: {message.splitlines()[0]}")
    return ConfigError(_one_line(error))


def _missing_file(error: MissingConfigException) -> ConfigError:
    """Return the error for an option or primary file that does not exist."""
    missing = str(error.missing_cfg_file)
    if error.options:
        group, _, option = missing.rpartition("/")
        options = ", ".join(error.options)
        hint = _OPTIONAL.get(missing, "")
        return ConfigError(
            f"{group} has no option {option}. Received: {missing}. Use: {options}.{hint}"
        )
    return ConfigError(
        f"There is no configuration file {missing}. Received: --config-name. Add the folder that "
        "holds it: --config-dir <folder>."
    )


def _unknown_key(key: str, groups: Mapping[str, Collection[str]]) -> ConfigError:
    section, _, name = key.partition(".")
    if name and section in _FREE_SECTIONS:
        return ConfigError(
            f"{section} has no key {name} in the chosen configuration. To pass a further argument "
            f"to its _target_, write ++{key}=..."
        )
    return unknown_key(key, [*known_keys(), *groups])


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("See https:"))
