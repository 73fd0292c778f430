"""The search space of a search: which keys vary, over which values, under which conditions.

Pure decisions over plain values; what Keras Tuner makes of them stands in `kdist.tuning`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kdist.errors import ConfigError

FLOAT, INT, CHOICE, BOOL = TYPES = ("float", "int", "choice", "bool")
SAMPLINGS = ("linear", "log", "reverse_log")
_KEYS: Mapping[str, tuple[str, ...]] = {
    FLOAT: ("min", "max", "step", "sampling"),
    INT: ("min", "max", "step", "sampling"),
    CHOICE: ("values",),
    BOOL: (),
}
_COMMON_KEYS = ("type", "default", "when")
_ENTRY_KEYS = {*_COMMON_KEYS, *(name for names in _KEYS.values() for name in names)}
_EXAMPLE = "{type: float, min: 1e-4, max: 1e-1, sampling: log}"

# What is searched where nothing else is asked for.
DEFAULT_SPACE: Mapping[str, Any] = {
    "optimizer.learning_rate": {"type": FLOAT, "min": 1e-4, "max": 1e-1, "sampling": "log"}
}


@dataclass(frozen=True, kw_only=True)
class Hyperparameter:
    """One key that varies.

    Attributes:
        key: The configuration key, as one would type it (`++` in front adds a new one).
        type: float, int, choice or bool.
        min: Smallest value of a number.
        max: Largest value of a number.
        step: Between two values of a number: added, or multiplied where sampling is no `linear`.
        sampling: linear, log or reverse_log.
        values: Values of a choice, of any plain type.
        default: The value that searches begin with, where they begin with one.
        when: It only counts where each of these keys has one of these values.
    """

    key: str
    type: str
    min: float = 0
    max: float = 0
    step: float | None = None
    sampling: str = "linear"
    values: tuple[Any, ...] = ()
    default: Any = None
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def extremes(self) -> tuple[Any, ...]:
        """Values that between them show whether the key takes all of its values."""
        if self.type == BOOL:
            return (False, True)
        return self.values if self.type == CHOICE else (self.min, self.max)

    def is_active(self, values: Mapping[str, Any]) -> bool:
        """Return whether it counts beside these values of other keys."""
        return all(key in values and values[key] in wanted for key, wanted in self.when.items())


def read_space(content: Mapping[str, Any], key: str = "tuner.space") -> tuple[Hyperparameter, ...]:
    """Return the space with every key after those that its conditions name.

    Args:
        content: Keys to mappings with a `type`; dotted keys may also be nested mappings.
        key: Where the space stands in the configuration, for messages.

    Raises:
        ConfigError: Naming the entry that is wrong.
    """
    found = {name: _read_entry(name, entry, key) for name, entry in _flat(content, key).items()}
    ordered: dict[str, Hyperparameter] = {}
    for name in found:
        _add_after_parents(name, found, ordered, (), key)
    return tuple(ordered.values())


def _flat(content: Any, key: str) -> dict[str, Mapping[str, Any]]:
    """Return entries by dotted key. What is given of one without its type changes it."""
    entries: dict[str, dict[str, Any]] = {}
    changes: dict[str, dict[str, Any]] = {}
    _collect(content, "", entries, changes, key)
    for name, fields in changes.items():
        if name not in entries:
            raise ConfigError(
                f"{key}.{name} needs a type, one of {', '.join(TYPES)}, as in {_EXAMPLE}. "
                f"Received: {fields}."
            )
        entries[name] |= fields
    return dict(entries)


def _collect(
    content: Any,
    prefix: str,
    entries: dict[str, dict[str, Any]],
    changes: dict[str, dict[str, Any]],
    key: str,
) -> None:
    if not isinstance(content, Mapping):
        raise ConfigError(
            f"{key}.{prefix} needs a type, one of {', '.join(TYPES)}, as in {_EXAMPLE}. "
            f"Received: {content!r}."
        )
    for name, value in content.items():
        full = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and isinstance(value.get("type"), str):
            # A group's entry may hold those of its keys: `model` has `model.units` beside it.
            inner = {k: v for k, v in value.items() if _is_below(k, v)}
            entries[full] = {k: v for k, v in value.items() if k not in inner}
            _collect(inner, full, entries, changes, key)
        elif prefix and name in _ENTRY_KEYS:
            changes.setdefault(prefix, {})[name] = value
        elif value is not None:
            _collect(value, full, entries, changes, key)


def _is_below(name: Any, value: Any) -> bool:
    return name not in _ENTRY_KEYS and isinstance(value, Mapping)


def _read_entry(name: str, entry: Mapping[str, Any], key: str) -> Hyperparameter:
    spot = f"{key}.{name}"
    kind = entry["type"]
    if kind not in TYPES:
        raise ConfigError(f"{spot}.type must be one of {', '.join(TYPES)}. Received: {kind}.")
    taken = (*_COMMON_KEYS, *_KEYS[kind])
    unknown = [str(each) for each in entry if each not in taken]
    if unknown:
        raise ConfigError(
            f"{spot} does not take {', '.join(unknown)}: type={kind} takes {', '.join(taken[1:])}."
        )
    when = _read_when(entry.get("when"), spot)
    if kind in (FLOAT, INT):
        return _read_number(name, kind, entry, when, spot)
    values = _read_values(entry.get("values"), spot) if kind == CHOICE else (False, True)
    default = entry.get("default", values[0])
    if default not in values:
        raise ConfigError(f"{spot}.default must be one of its values. Received: {default!r}.")
    values = values if kind == CHOICE else ()
    return Hyperparameter(key=name, type=kind, values=values, default=default, when=when)


def _read_number(
    name: str, kind: str, entry: Mapping[str, Any], when: Mapping[str, Any], spot: str
) -> Hyperparameter:
    least, most = _number(entry, "min", kind, spot), _number(entry, "max", kind, spot)
    sampling = entry.get("sampling") or "linear"
    if sampling not in SAMPLINGS:
        raise ConfigError(
            f"{spot}.sampling must be one of {', '.join(SAMPLINGS)}. Received: {sampling}."
        )
    if not least < most:
        raise ConfigError(
            f"{spot}.min must be less than {spot}.max. Received: min={least}, max={most}."
        )
    if sampling != "linear" and least <= 0:
        raise ConfigError(
            f"{spot}.min must be more than 0 where sampling={sampling}. Received: {least}."
        )
    step = None if entry.get("step") is None else _number(entry, "step", kind, spot)
    smallest = 0 if sampling == "linear" else 1
    if step is not None and not step > smallest:
        factor = " (a factor)" if smallest else ""
        raise ConfigError(
            f"{spot}.step{factor} must be more than {smallest} where sampling={sampling}. "
            f"Received: {step}."
        )
    default = least if entry.get("default") is None else _number(entry, "default", kind, spot)
    if not least <= default <= most:
        raise ConfigError(f"{spot}.default must lie between min and max. Received: {default}.")
    return Hyperparameter(
        key=name, type=kind, min=least, max=most, step=step, sampling=sampling,
        default=default, when=when,
    )  # fmt: skip


def _number(entry: Mapping[str, Any], name: str, kind: str, spot: str) -> float:
    value: Any = entry.get(name)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number) and (kind == FLOAT or number == int(number)):
        return number if kind == FLOAT else int(number)
    wanted = "a number" if kind == FLOAT else "a whole number"
    raise ConfigError(f"{spot}.{name} must be {wanted}. Received: {value!r}.")


def _read_values(values: Any, spot: str) -> tuple[Any, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ConfigError(f"{spot}.values must be a list such as [relu, gelu]. Received: {values}.")
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ConfigError(f"{spot}.values must differ. Received: {value!r} twice.")
    return tuple(values)


def _read_when(when: Any, spot: str) -> dict[str, tuple[Any, ...]]:
    if when is None:
        return {}
    if not isinstance(when, Mapping):
        raise ConfigError(f"{spot}.when must be a mapping as in {{model: cnn}}. Received: {when}.")
    return {
        str(key): tuple(value) if isinstance(value, list | tuple) else (value,)
        for key, value in when.items()
    }


def _add_after_parents(
    name: str,
    found: Mapping[str, Hyperparameter],
    ordered: dict[str, Hyperparameter],
    path: tuple[str, ...],
    key: str,
) -> None:
    """Put an entry into `ordered`, those that it depends on first."""
    if name in ordered:
        return
    if name in path:
        raise ConfigError(
            f"Conditions of {key} go in a circle. Received: {' when '.join((*path, name))}."
        )
    for parent, wanted in found[name].when.items():
        if parent not in found:
            raise ConfigError(
                f"{key}.{name}.when names {parent}, which is not in the space. "
                f"Received: {', '.join(found)}. Add {parent}, or drop the condition."
            )
        _add_after_parents(parent, found, ordered, (*path, name), key)
        _check_condition(found[parent], wanted, f"{key}.{name}.when.{parent}")
    ordered[name] = found[name]


def _check_condition(parent: Hyperparameter, wanted: Sequence[Any], spot: str) -> None:
    possible = parent.extremes
    if parent.type == FLOAT:
        raise ConfigError(f"{spot} must name a choice, a bool or an int. Received: a float.")
    for value in wanted:
        is_possible = parent.min <= value <= parent.max if parent.type == INT else value in possible
        if not is_possible:
            shown = f"{parent.min} to {parent.max}" if parent.type == INT else f"{possible}"
            raise ConfigError(f"{spot} must be one of its values, {shown}. Received: {value!r}.")
