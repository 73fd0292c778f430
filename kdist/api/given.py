"""The functions and objects that `kdist.fit` was given: sent to the tasks, named and described."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from kdist.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Given:
    """What `kdist.fit` was given; `None` is nothing.

    Attributes:
        build_model: Returns the model.
        make_data: Returns the parts of the data.
        optimizer: Keras optimizer, configuration or name.
        loss: The same for the loss.
        metrics: The same for metrics: a list, a mapping by output, or one.
        callbacks: Keras callbacks: a list, or one.
    """

    build_model: Callable[[], Any]
    make_data: Callable[[], Mapping[str, Any]]
    optimizer: Any = None
    loss: Any = None
    metrics: Any = None
    callbacks: Any = None

    def check(self) -> None:
        """Check what can be told without calling anything.

        Raises:
            ConfigError: If the model or the data are no functions.
        """
        for name, meant in (("build_model", "a keras.Model"), ("make_data", "the data")):
            function = getattr(self, name)
            is_model = hasattr(function, "trainable_variables") and not inspect.isclass(function)
            if is_model or not callable(function):
                raise ConfigError(
                    f"kdist.fit takes functions, which every task calls. Received: {name}="
                    f"{_shown(function)}. Give a function without arguments that returns {meant}."
                )

    @property
    def compile_arguments(self) -> dict[str, Any]:
        """Which of optimizer, loss and metrics were given."""
        everything = {"optimizer": self.optimizer, "loss": self.loss, "metrics": self._metrics}
        return {name: value for name, value in everything.items() if value is not None}

    def pickled(self) -> bytes:
        """Return everything by name, as tasks unpickle it.

        Raises:
            ConfigError: If something cannot be sent to another process.
        """
        everything = {
            "build_model": self.build_model,
            "make_data": self.make_data,
            **self.compile_arguments,
            "callbacks": _listed(self.callbacks),
        }
        try:
            return cloudpickle.dumps(
                {name: value for name, value in everything.items() if value is not None}
            )
        except (TypeError, AttributeError, ValueError) as error:
            reason = str(error).rstrip(".")
            raise ConfigError(
                f"What kdist.fit was given cannot be sent to the tasks: {reason}. Make models, "
                "arrays and open files inside build_model and make_data."
            ) from error

    def described(self) -> dict[str, Any]:
        """Return optimizer, loss and metrics in words and numbers, to be compared by later runs."""
        return {name: _described(value) for name, value in self.compile_arguments.items()}

    def custom_objects(self) -> dict[str, Any]:
        """Return the classes and functions that the model function sees, and those given."""
        seen: dict[str, Any] = {}
        code = inspect.unwrap(self.build_model)
        if inspect.isfunction(code):
            seen |= {**code.__globals__, **inspect.getclosurevars(code).nonlocals}
        entries = list(self.compile_arguments.values())
        while entries:
            entry = entries.pop()
            if isinstance(entry, Mapping):
                entries += entry.values()
            elif isinstance(entry, list | tuple):
                entries += entry
            elif entry is not None:
                named = entry if inspect.isfunction(entry) else type(entry)
                seen[named.__name__] = named
        return {
            name: each
            for name, each in seen.items()
            if inspect.isroutine(each) or inspect.isclass(each)
        }

    @property
    def _metrics(self) -> Any:
        if isinstance(self.metrics, Mapping):
            return dict(self.metrics) or None
        return _listed(self.metrics)


def _listed(given: Any) -> list[Any] | None:
    """Return one thing as a list of one, as `fit` of Keras does, and nothing as `None`."""
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    return ([given] if is_one and given is not None else list(given or ())) or None


def _described(value: Any) -> Any:
    """Return names, numbers and containers of them; of an object its class and its settings."""
    if value is None:
        return None
    for kind in (bool, int, float, str):  # Of NumPy's numbers, too, Python's.
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(name): _described(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_described(each) for each in value]
    if inspect.isclass(value) or inspect.isroutine(value):
        return getattr(value, "__name__", type(value).__name__)
    return {"class": type(value).__name__, **_settings_of(value)}


def _settings_of(value: Any) -> dict[str, Any]:
    """Return the settings of a Keras object that are words and numbers, without its name."""
    try:
        config = value.get_config()
    except Exception:  # A user's own class may have any fault here, and none that matters.
        return {}
    plain = (bool, int, float, str, list, tuple, Mapping)
    return {
        name: _described(each)
        for name, each in config.items()
        if name not in ("name", "fn") and isinstance(each, plain)
    }


def _shown(value: Any) -> str:
    text = f"an object of {type(value).__name__}" if callable(value) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
