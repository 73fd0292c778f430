"""Plain containers to dataclasses: unknown keys and wrong types, named as the user wrote them."""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from kdist.config.schema import GIVEN, Config, TargetConfig
from kdist.errors import ConfigError

Schema = TypeVar("Schema")

_BOOLEAN_WORDS = {
    **dict.fromkeys(("yes", "on", "true"), True),
    **dict.fromkeys(("no", "off", "false"), False),
}
_MAX_SHOWN = 160
# Keys whose fields have another name.
_FIELDS = {"_target_": "target", "async": "async_"}
_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def read(schema: type[Schema], content: Any, key: str = "") -> Schema:
    """Return `content` as an object of the dataclass `schema`.

    Args:
        schema: A dataclass; absent keys take its defaults.
        content: A mapping of plain values (nested mappings and lists included).
        key: The dotted key that `content` stands under, for messages.

    Raises:
        ConfigError: Naming the key, if it is unknown or its value has the wrong type.
    """
    if not isinstance(content, Mapping):
        raise ConfigError(f"{key} must be a mapping of keys to values. Received: {content!r}.")
    types_of_fields = typing.get_type_hints(schema)
    is_target = issubclass(schema, TargetConfig)
    types_of_fields = {_key_of(name): kind for name, kind in types_of_fields.items()}
    if is_target:
        del types_of_fields["arguments"]
    values: dict[str, Any] = {}
    free: dict[str, Any] = {}
    for name, value in content.items():
        full_key = f"{key}.{name}" if key else str(name)
        if name in types_of_fields:
            field_name = _FIELDS.get(str(name), str(name))
            values[field_name] = _convert(types_of_fields[name], value, full_key)
        elif is_target:
            free[_text(name, full_key)] = value
        else:
            raise unknown_key(full_key)
    if is_target:
        values["arguments"] = free
    return schema(**values)


def refuse_endless_numbers(value: Any, key: str = "") -> None:
    """Refuse whole numbers, at any depth, that Python does not write out: config.yaml must.

    Raises:
        ConfigError: Naming the key.
    """
    if isinstance(value, Mapping):
        for name, entry in value.items():
            refuse_endless_numbers(name, f"A key of {key or 'the configuration'}")
            refuse_endless_numbers(entry, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for entry in value:
            refuse_endless_numbers(entry, key)
    elif isinstance(value, int):
        try:
            str(value)
        except ValueError as error:
            raise ConfigError(
                f"{key} must be a whole number of at most 64 bits. Received: one of "
                f"{value.bit_length()} bits."
            ) from error


def unknown_key(key: str, known: Collection[str] = ()) -> ConfigError:
    """Return the error for a key that the configuration does not have."""
    if key == GIVEN:
        return ConfigError(
            "config.yaml of a kdist.fit run holds no functions, which were given in Python. "
            f"Received: the key {GIVEN}. Repeat the run with kdist.fit."
        )
    candidates = list(known) or known_keys()
    section = key[: key.rfind(".") + 1]
    names = [each.removeprefix(section) for each in candidates if each.startswith(section)]
    if not names:
        section, names = "", candidates
    close = difflib.get_close_matches(key.removeprefix(section), names, n=1, cutoff=0.7)
    hint = (
        f"Did you mean {section}{close[0]}?" if close else "`--cfg job` shows the keys there are."
    )
    return ConfigError(f"The configuration has no key {key}. {hint}")


def known_keys(schema: type = Config, prefix: str = "") -> list[str]:
    """Return every dotted key of the schema."""
    keys = []
    for name, kind in typing.get_type_hints(schema).items():
        if dataclasses.is_dataclass(kind):
            keys += known_keys(typing.cast(type, kind), f"{prefix}{name}.")
        elif name != "arguments":
            keys.append(prefix + _key_of(name))
    return keys


def shown(text: str) -> str:
    """Return a text for a message, cut where it is long."""
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _key_of(field_name: str) -> str:
    """Return the key of a field; some keys cannot be names of fields."""
    return next((key for key, name in _FIELDS.items() if name == field_name), field_name)


def _convert(kind: Any, value: Any, key: str) -> Any:
    """Return `value` as `kind`, or refuse it by its key."""
    if kind is Any:
        return value
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _convert(arguments[0], value, key)
    if origin is dict:
        return _convert_entries(arguments, value, key)
    if dataclasses.is_dataclass(kind):
        return read(typing.cast(type, kind), {} if value is None else value, key)
    return _convert_scalar(kind, value, key)


def _convert_entries(kinds: tuple[Any, Any], value: Any, key: str) -> dict[Any, Any]:
    """Return a mapping with converted keys and values; entries that are null are left out."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be a mapping of keys to values. Received: {value!r}.")
    name_kind, entry_kind = kinds
    return {
        _convert_scalar(name_kind, name, f"{key} (its key {name})"): _convert(
            entry_kind, entry, f"{key}.{name}"
        )
        for name, entry in value.items()
        if entry is not None
    }


def _convert_scalar(kind: type, value: Any, key: str) -> Any:
    """Return a number, boolean or text; only lossless conversions are made."""
    if kind is str:
        return _text(value, key)
    if kind is bool:
        word = value.lower() if isinstance(value, str) else None
        if isinstance(value, bool) or word in _BOOLEAN_WORDS:
            return value if isinstance(value, bool) else _BOOLEAN_WORDS[word or ""]
    elif (number := _number(value)) is not None:
        if kind is float:
            return float(number)
        if isinstance(number, int) or number.is_integer():
            if -(2**63) <= number < 2**63:
                return int(number)
            # TensorFlow could not count with it, whatever the key.
            raise ConfigError(
                f"{key} must be a whole number of at most 64 bits. Received: {shown(repr(value))}."
            )
    raise ConfigError(f"{key} must be {_WANTED[kind]}. Received: {shown(repr(value))}.")


def _number(value: Any) -> int | float | None:
    """Return a number, also one written as a text; `None` if it is none that a float can hold."""
    try:
        if isinstance(value, str):
            value = float(value) if re.search(r"[.eEnN]", value) else int(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            float(value)
            return value
    except (ValueError, OverflowError):
        pass
    return None


def _text(value: Any, key: str) -> str:
    if isinstance(value, bool):
        raise ConfigError(
            f"{key} must be a text. Received: {value!r} (YAML reads yes, no, on and off without "
            "quotes as true and false)."
        )
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise ConfigError(f"{key} must be a text. Received: {value!r}.")
    return value
