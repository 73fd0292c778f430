"""A user's Keras Tuner hypermodel as the model function of a run."""

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

import keras_tuner

from kdist.config.importing import import_object
from kdist.config.schema import TargetConfig
from kdist.config.targets import bind_target
from kdist.errors import ConfigError

_KEY = "tuner.hypermodel"


def build(hypermodel: str, values: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Return the model that a hypermodel builds of these values: a run's `model._target_`.

    Args:
        hypermodel: Its dotted path.
        values: The values of its hyperparameters, by name.
        arguments: What its constructor takes.
    """
    hyperparameters = keras_tuner.HyperParameters()
    hyperparameters.values = dict(values)
    return make(TargetConfig(target=hypermodel, arguments=dict(arguments))).build(hyperparameters)


def unsearched(hypermodel: keras_tuner.HyperModel, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters that a trial's model uses and the search does not know.

    The oracle knows what it has met while it explored the hypermodel; anything else keeps its
    default in all trials.

    Args:
        hypermodel: It is built here, as the trial will build it.
        values: The trial's.

    Returns:
        Their defaults by name; none where the model cannot be built, which the trial will tell.
    """
    hyperparameters = keras_tuner.HyperParameters()
    hyperparameters.values = dict(values)
    with contextlib.suppress(Exception):
        hypermodel.build(hyperparameters)
    return {name: used for name, used in hyperparameters.values.items() if name not in values}


def make(section: TargetConfig) -> keras_tuner.HyperModel:
    """Return the hypermodel that a configuration names: a class, or a function of `hp`.

    Raises:
        ConfigError: If it is neither, or trains by itself.
    """
    target = import_object(section.target or "", f"{_KEY}._target_")
    if inspect.isclass(target) and issubclass(target, keras_tuner.HyperModel):
        if target.fit is not keras_tuner.HyperModel.fit:
            raise ConfigError(
                f"{_KEY} trains by a fit() of its own, and kdist trains the model itself. "
                f"Received: {section.target}. Put what fit() does into callbacks and configuration."
            )
        return bind_target(_KEY, section).call()
    if not callable(target) or inspect.isclass(target):
        raise ConfigError(
            f"{_KEY}._target_ must be a keras_tuner.HyperModel, or a function of hyperparameters. "
            f"Received: {section.target}."
        )
    return _Function(target, section.arguments)


class _Function(keras_tuner.HyperModel):
    """A function of hyperparameters as a hypermodel."""

    def __init__(self, function: Any, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self._function = function
        self._arguments = arguments

    def build(self, hp: Any) -> Any:
        """Return the function's model."""
        return self._function(hp, **self._arguments)
