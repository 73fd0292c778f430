"""Calling what a `_target_` names with the arguments that the configuration holds for it."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kdist.config.importing import import_object, where_raised
from kdist.config.schema import TargetConfig
from kdist.errors import ConfigError, KdistError

TARGET = "_target_"


@dataclass(frozen=True, kw_only=True)
class BoundTarget:
    """An imported object, and the arguments that it will be called with.

    Attributes:
        key: The section of the configuration, such as `model`.
        path: The dotted path of the object.
        function: The object itself.
        arguments: Keyword arguments, in the configuration's plain values.
        dropped: Inherited keys that the object does not take, as dotted keys.
        inherited: Arguments that nobody typed, and that are not the object's defaults.
    """

    key: str
    path: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    dropped: tuple[str, ...] = ()
    inherited: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown_inherited(self) -> str:
        """Return the inherited arguments for a message, as `units=128, layers=2`."""
        return _shown(self.inherited)

    def call(self) -> Any:
        """Return what the object returns.

        Raises:
            ConfigError: If it raises; the message says where, and `from` holds the cause.
        """
        arguments = {
            name: _resolve_nested(f"{self.key}.{name}", value)
            for name, value in self.arguments.items()
        }
        try:
            return self.function(**arguments)
        except KdistError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.key}: {self.path} raised {type(error).__name__}: {error}"
                f"{where_raised(error)}. Received: {_shown(self.arguments)}. "
                "debug=true shows the traceback."
            ) from error


def call_target(
    key: str,
    section: TargetConfig | Mapping[str, Any],
    *,
    typed_keys: Collection[str] = (),
    own_keys: Collection[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> Any:
    """Import the `_target_` of a section, call it, and return what it returns.

    See `bind_target` for the arguments and for what is refused.
    """
    bound = bind_target(key, section, typed_keys=typed_keys, own_keys=own_keys, extra=extra)
    return bound.call()


def bind_target(
    key: str,
    section: TargetConfig | Mapping[str, Any],
    *,
    typed_keys: Collection[str] = (),
    own_keys: Collection[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> BoundTarget:
    """Import the `_target_` of a section and match the section's keys with its signature.

    Args:
        key: Where the section stands in the configuration, such as `model`.
        section: A section of `Config`, or a mapping with `_target_` and arguments.
        typed_keys: Dotted keys that the user typed: a target must take those.
        own_keys: Keys of a mapping that kdist itself reads (a `Config` section knows its own):
            passed where the target takes them, else left out without a word.
        extra: Further arguments, passed where the target takes them and nothing else is given.

    Raises:
        ConfigError: If nothing can be imported, a typed key is not taken, or an argument that
            the target needs is missing.
    """
    path, free, own = _split(section, own_keys)
    if path is None:
        raise ConfigError(
            f"{key}.{TARGET} is missing: name a function or class, as in ++{key}.{TARGET}="
            f"{'my_pkg.load' if key == 'data' else 'my_pkg.build'}. Received: {_shown(free)}."
        )
    function = import_object(path, f"{key}.{TARGET}")
    if not callable(function):
        raise ConfigError(f"{key}.{TARGET} must be callable. Received: {path} = {function!r}.")
    takes, takes_any, defaults = _parameters(function)
    typed = {name for name in free if _is_typed(f"{key}.{name}", typed_keys)}
    # Beside a `_target_` that was typed, the other keys are those of the one that it replaces.
    is_replaced = f"{key}.{TARGET}" in typed_keys
    refused = sorted(
        name
        for name in free
        if name not in takes and not (takes_any and (name in typed or not is_replaced))
    )
    refused_typed = [name for name in refused if name in typed]
    refused_typed += [
        name
        for name in own
        if name == "path" and name not in takes and f"{key}.{name}" in typed_keys
    ]
    if refused_typed:
        raise ConfigError(
            f"{path} does not take {', '.join(f'{key}.{name}' for name in refused_typed)}. "
            f"It takes: {', '.join(takes) or 'no argument'}."
        )
    offered = {**(extra or {}), **{name: value for name, value in own.items() if value is not None}}
    arguments = {name: value for name, value in offered.items() if name in takes}
    arguments |= {name: value for name, value in free.items() if name not in refused}
    missing = [name for name in takes if name not in defaults and name not in arguments]
    if missing:
        raise ConfigError(
            f"{path} needs {', '.join(missing)}. Received: {_shown(arguments)}. "
            f"Add {' '.join(_assignment(key, name, own) for name in missing)}."
        )
    dropped = tuple(f"{key}.{name}" for name in refused)
    inherited = {
        name: value
        for name, value in free.items()
        if name not in (*refused, *typed) and not _is_default(defaults.get(name, ...), value)
    }
    return BoundTarget(
        key=key,
        path=path,
        function=function,
        arguments=arguments,
        dropped=dropped,
        inherited=inherited,
    )


def resolve(key: str, value: Any) -> Any:
    """Return the live form of a value that may name objects, as `loss` and `metrics` do.

    A dotted text is imported (a class is called without arguments); other texts are Keras' own
    names and stay; a mapping with `_target_` is called; lists and other mappings are resolved
    entry by entry.

    Raises:
        ConfigError: If something cannot be imported or called.
    """
    if isinstance(value, str) and "." in value:
        found = import_object(value, key)
        return call_target(key, {TARGET: value}) if inspect.isclass(found) else found
    return _resolve_nested(key, value, resolve)


def _resolve_nested(key: str, value: Any, entry: Callable[[str, Any], Any] | None = None) -> Any:
    """Call every mapping with `_target_` inside a value; leave everything else as it is."""
    entry = entry or _resolve_nested
    if isinstance(value, Mapping):
        if TARGET in value:
            names = [f"{key}.{name}" for name in value]
            return call_target(key, value, typed_keys=names)
        return {name: entry(f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [entry(f"{key}[{index}]", item) for index, item in enumerate(value)]
    return value


def _split(
    section: TargetConfig | Mapping[str, Any], own_keys: Collection[str]
) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """Return the path, the free arguments and the values of kdist's own keys."""
    if isinstance(section, TargetConfig):
        return section.target, section.arguments, section.own_values
    entries = {name: value for name, value in section.items() if name != TARGET}
    free = {name: value for name, value in entries.items() if name not in own_keys}
    own = {name: value for name, value in entries.items() if name in own_keys}
    return section.get(TARGET), free, own


def _parameters(function: Callable[..., Any]) -> tuple[list[str], bool, dict[str, Any]]:
    """Return the names that a callable takes, whether it takes any, and the defaults of some."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # Some builtins tell nothing about themselves.
        return [], True, {}
    named = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    defaults = {p.name: p.default for p in named if p.default is not p.empty}
    return [parameter.name for parameter in named], takes_any, defaults


def _is_default(default: Any, value: Any) -> bool:
    return isinstance(default, str | int | float | None) and default == value


def _assignment(key: str, name: str, own: Mapping[str, Any]) -> str:
    return f"{key}.{name}=..." if name in own else f"++{key}.{name}=..."


def _is_typed(key: str, typed_keys: Collection[str]) -> bool:
    return any(typed == key or typed.startswith(f"{key}.") for typed in typed_keys)


def _shown(arguments: Mapping[str, Any]) -> str:
    """Return the arguments for a message; texts by name only, since one may be a secret."""
    shown = (
        f"{name}={value}" if isinstance(value, int | float | None) else f"{name}=..."
        for name, value in arguments.items()
    )
    return ", ".join(shown) or "no arguments"
