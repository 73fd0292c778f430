"""Values that a step reads and never writes: kept on the first server, copied by every worker.

They are a model's frozen variables, and constants that the traced step has captured from this
process (the mean of an adapted Normalization, say), which a graph of its own cannot reach.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute.keras_adapter import all_layers
from kdist.distribute.values import write
from kdist.errors import ConfigError

_L = keras.layers
_WITH_A_TABLE = (_L.StringLookup, _L.IntegerLookup, _L.TextVectorization)


class Copies:
    """Tensors of fixed shapes: the originals on the server, this worker's copies beside it.

    Make it, and call its methods, in the graph of the store.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], *, server: str, worker: str):
        """Create the variables.

        Args:
            specs: Shapes and dtypes.
            server: The device that keeps the originals.
            worker: This worker's device.
        """
        with tf.device(server):
            self.originals = [_variable(spec) for spec in specs]
        with tf.device(worker):
            self._copies = [_variable(spec) for spec in specs]

    @property
    def local_variables(self) -> list[tf.Variable]:
        """Return what this worker initializes for itself."""
        return self._copies

    def read(self) -> list[tf.Tensor]:
        """Return this worker's copies."""
        return [tf.convert_to_tensor(copy) for copy in self._copies]

    def refresh(self) -> tf.Operation:
        """Return an operation that copies the originals."""
        return tf.group(
            *(
                copy.assign(original.read_value(), read_value=False)
                for copy, original in zip(self._copies, self.originals, strict=True)
            )
        )

    def write(self, values: Sequence[Any]) -> None:
        """Give the originals new values; for the chief, between stretches of steps."""
        for original, value in zip(self.originals, values, strict=True):
            write(original, value)


def _variable(spec: tf.TensorSpec) -> tf.Variable:
    return tf.Variable(tf.zeros(spec.shape, spec.dtype), trainable=False)


def captured_constants(functions: Sequence[Any], model: keras.Model) -> list[tf.Tensor]:
    """Return the constants of this process that concrete functions read, each once.

    Args:
        functions: What was traced.
        model: The model in them, whose layers a message names.

    Raises:
        ConfigError: If one of them is no value, but a table, say, which lives in this process.
    """
    found: dict[int, tf.Tensor] = {}
    for function in functions:
        for tensor in function.captured_inputs:
            if not tf.is_symbolic_tensor(tensor):
                found.setdefault(id(tensor), tensor)
    foreign = [t for t in found.values() if t.dtype in (tf.resource, tf.variant)]
    if foreign:
        names = [layer.name for layer in all_layers(model) if isinstance(layer, _WITH_A_TABLE)]
        raise ConfigError(
            "The model looks up in a table that lives in this process, which "
            "strategy.replication=between_graph cannot reach. Received: "
            f"{', '.join(names) or f'{len(foreign)} of them'}. Look up in the data function, or "
            "use strategy.replication=in_graph."
        )
    return list(found.values())


def give_constants(
    functions: Sequence[Any], constants: Sequence[tf.Tensor], given: Sequence[tf.Tensor]
) -> None:
    """Let concrete functions read tensors of the graph in place of constants of this process."""
    replacement = {id(c): tensor for c, tensor in zip(constants, given, strict=True)}
    for function in functions:
        function.set_external_captures(
            [replacement.get(id(tensor), tensor) for tensor in function.captured_inputs]
        )


def as_arrays(constants: Sequence[Any]) -> list[np.ndarray]:
    """Return constants of this process as arrays."""
    return [np.asarray(constant) for constant in constants]
