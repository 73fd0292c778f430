"""Hydra's and OmegaConf's refusals, in kdist's words."""

import contextlib
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from kdist.config.reading import known_keys, shown, unknown_key
from kdist.errors import ConfigError, KdistError

# Options that come with an extra.
_OPTIONAL = {"hydra/sweeper/optuna": " optuna comes with: pip install 'kdist[optuna]'."}
# Sections whose keys no schema knows: they are arguments of a `_target_`, or names.
_TARGETS = ("data", "model", "optimizer", "loss", "program")
_FREE_SECTIONS = (*_TARGETS, "callbacks")
_FREE_KEYS = ("tuner.space.", "tuner.hypermodel.")


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
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"A configuration file is not UTF-8 text: {error.reason} at byte {error.start}. "
            f"Received: {error.object[:60]!r}. Save it as UTF-8."
        ) from error


@contextlib.contextmanager
def only_hydra(overrides: Sequence[str]) -> Iterator[None]:
    """Turn Python's own errors, which Hydra lets through for some values, into a `ConfigError`.

    Only for calls of Hydra alone: around kdist's own code it would hide faults of kdist.

    Args:
        overrides: What was typed.
    """
    try:
        yield
    except (KdistError, HydraException, OmegaConfBaseException, UnicodeDecodeError, yaml.YAMLError):
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise ConfigError(
            f"Hydra cannot take one of these values ({type(error).__name__}: {_one_line(error)}). "
            f"Received: {shown(' '.join(overrides))}. Give each key a value of the kind that "
            "`--cfg job` shows for it."
        ) from error


def explain(error: Exception, groups: Mapping[str, Collection[str]]) -> ConfigError:
    """Return what Hydra refused, why, and what to do."""
    if isinstance(error, MissingConfigException):
        return _missing_file(error)
    message = str(error)
    unknown = re.search(r"Could not (?:override|append) '(?P<key>[^']+)'", message)
    if unknown:
        return _unknown_key(unknown["key"], groups, _inner_key(error, unknown["key"]), message)
    merged = re.fullmatch(r"Error merging override (?P<override>.+)", message, re.DOTALL)
    if merged:
        return _not_merged(merged["override"], error)
    deleted = re.search(r"Could not delete.*'(?P<key>[^']+)' does not exist", message)
    if deleted:
        return _left_out(deleted["key"], f"Leave ~{deleted['key']} out.") or unknown_key(
            deleted["key"]
        )
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


def _unknown_key(
    key: str, groups: Mapping[str, Collection[str]], inner: str | None, message: str
) -> ConfigError:
    """Return the error for a key, or for one inside of the mapping that was typed as its value."""
    full_key = inner or key
    if key in groups and "No match in the defaults list" in message:
        return ConfigError(
            f"The chosen configuration leaves the group {key} out. Add a line `- {key}: ...` to "
            "its defaults list."
        )
    if left_out := _left_out(full_key, f"To add it, write ++{full_key}=..."):
        return left_out
    section, _, name = full_key.partition(".")
    if not name:
        return unknown_key(full_key, [*known_keys(), *groups])
    if section not in _FREE_SECTIONS and not full_key.startswith(_FREE_KEYS):
        return unknown_key(full_key)
    typed = re.search(r"To append to your config use \+(?P<override>.+)", message, re.DOTALL)
    wanted = shlex.quote(f"++{typed['override']}") if inner and typed else f"++{full_key}=..."
    why = "To pass a further argument to its _target_" if section in _TARGETS else "To add it"
    return ConfigError(
        f"{section} has no key {name} in the chosen configuration. {why}, write {wanted}"
    )


def _left_out(key: str, advice: str) -> ConfigError | None:
    """Return the error for a key (or section) of kdist's that the chosen file does not hold."""
    is_known = any(each == key or each.startswith(f"{key}.") for each in known_keys())
    return ConfigError(f"The chosen configuration holds no {key}. {advice}") if is_known else None


def _inner_key(error: Exception, typed: str) -> str | None:
    """Return the key inside a typed mapping that Hydra refused, if the value was a mapping."""
    inner = getattr(error.__cause__, "full_key", None) or ""
    return inner if inner.startswith(f"{typed}.") else None


def _not_merged(override: str, error: Exception) -> ConfigError:
    """Return the error for a value of another kind than what the key holds."""
    reason = str(error.__cause__ or "").partition("\n")[0].rstrip(".")
    plain = override.lstrip("+")
    is_mapping = plain.startswith("metrics={")
    hint = f" Take the list out first: ~metrics {shlex.quote('+' + plain)}" if is_mapping else ""
    return ConfigError(f"{override} does not fit what the key holds: {reason}.{hint}")


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("See https:"))
