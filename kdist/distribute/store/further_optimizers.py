"""Optimizers that a model keeps beside the one it was compiled with: two that play a game, say.

Only a `train_step` of the model's own uses them. Keras builds each when a step uses it first.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from kdist.distribute import keras_adapter
from kdist.distribute.model.structure import unique
from kdist.distribute.store.optimizer import inner_optimizer
from kdist.distribute.values import to_numpy, write
from kdist.errors import ConfigError


class FurtherOptimizers:
    """Those of one model: `optimizers`, in the order of its attributes and layers."""

    def __init__(self, model: keras.Model):
        """Look for them: a compiled model keeps those that it has."""
        self._name = type(model).__name__
        known = {id(model.optimizer), id(inner_optimizer(model.optimizer))}
        held = unique([each for layer in [model, *_layers(model)] for each in _held(layer)])
        self.optimizers = [each for each in held if id(each) not in known]

    def refuse_replicas(self, num_replicas: int) -> None:
        """Refuse to use them on several replicas, where Keras would build them on the fly.

        Raises:
            ConfigError: If there is one.
        """
        if self.optimizers:
            names = ", ".join(dict.fromkeys(type(each).__name__ for each in self.optimizers))
            raise ConfigError(
                f"{self._name} keeps optimizers beside the one that it is compiled with, which "
                f"only one replica can use. Received: {names}, {num_replicas} replicas. Use "
                "strategy=single."
            )

    @property
    def num_updates(self) -> int:
        """Return the updates that they have made, all together."""
        counts = [inner_optimizer(each).iterations for each in self.optimizers if each.built]
        return sum(int(to_numpy(count)) for count in counts)

    def values(self) -> dict[str, np.ndarray]:
        """Return what they hold; nothing of those that no step has used yet."""
        return {name: to_numpy(variable) for name, variable in self._variables().items()}

    def take(self, values: Mapping[str, np.ndarray]) -> bool:
        """Give them, built, what `values` found; return whether it fits."""
        variables = self._variables()
        fits = variables.keys() == values.keys() and all(
            tuple(variables[name].shape) == value.shape for name, value in values.items()
        )
        for name, value in values.items() if fits else ():
            write(variables[name], value)
        return fits

    def _variables(self) -> dict[str, Any]:
        return {
            f"{number}/{index}": variable
            for number, optimizer in enumerate(self.optimizers)
            if optimizer.built
            for index, variable in enumerate(unique(optimizer.variables))
        }


def _layers(model: keras.Model) -> list[Any]:
    return [layer for layer in keras_adapter.all_layers(model) if layer is not model]


def _held(layer: Any) -> Iterator[keras.optimizers.Optimizer]:
    """Yield the optimizers among a layer's attributes, and in lists and mappings of them."""
    for value in vars(layer).values():
        items = value.values() if isinstance(value, Mapping) else value
        is_many = isinstance(value, list | tuple | Mapping)
        for each in items if is_many else [value]:
            if isinstance(each, keras.optimizers.Optimizer):
                yield each
