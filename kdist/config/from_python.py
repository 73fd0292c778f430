"""Settings that `kdist.fit` was given: sections of dotted keys, and what nobody would hear."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kdist.config.schema import Config
from kdist.errors import ConfigError


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested containers of dotted keys; a section given as a mapping adds to its keys.

    Scalars of NumPy become Python's: notebooks are full of them.

    Raises:
        ConfigError: If a section was given something else than keys and values.
    """
    content: dict[str, Any] = {}
    for key, value in dotted.items():
        *parents, name = key.split(".")
        section = content
        for depth, parent in enumerate(parents, start=1):
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ConfigError(
                    f"{'.'.join(parents[:depth])} must be a mapping of keys to values. "
                    f"Received: {section!r} beside {key}."
                )
        section[name] = _merged(section.get(name), value)
    return content


def typed_keys(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of nested containers that say something: null does not."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from typed_keys(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}"


def refuse_unheard(config: Config, typed: Collection[str], given: Collection[str]) -> None:
    """Refuse settings that would change nothing beside the arguments of `kdist.fit`.

    Args:
        config: The checked configuration.
        typed: The dotted keys of the argument `config`.
        given: Which of the arguments `optimizer`, `loss` and `metrics` were given.

    Raises:
        ConfigError: Naming the keys, and where their values belong.
    """
    path = {} if config.data.path is None else {"path": config.data.path}
    for section, function, arguments in (
        ("model", "build_model", config.model.arguments),
        ("data", "make_data", {**config.data.arguments, **path}),
    ):
        if arguments:
            keys = ", ".join(f"{section}.{name}" for name in arguments)
            raise ConfigError(
                f"kdist.fit calls {function} without arguments. Received: {keys} in config. Give "
                f"values to the function, as in functools.partial({function}, ...)."
            )
    for name in given:
        both = [key for key in typed if key.split(".")[0] == name]
        if both:
            raise ConfigError(
                f"Two values for one thing. Received: the argument {name} of kdist.fit, and "
                f"{', '.join(both)} in config. Give one of them."
            )
    optimizer = config.optimizer
    if optimizer is not None and optimizer.target is None and optimizer.arguments:
        raise ConfigError(
            "optimizer._target_ is missing. Received: "
            f"{', '.join(f'optimizer.{name}' for name in optimizer.arguments)} in config. Name a "
            "class, as keras.optimizers.Adam, or give kdist.fit an optimizer."
        )


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(new, Mapping):
        return old if new is None and isinstance(old, Mapping) else _plain(new)
    kept = dict(old) if isinstance(old, Mapping) else {}
    return kept | {name: _merged(kept.get(name), value) for name, value in new.items()}


def _plain(value: Any) -> Any:
    """Return a value with Python's own numbers in place of NumPy's, which is not imported here."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar else value
