"""The values of a run by variable: what a checkpoint holds, whatever mode, buckets or servers.

Names of arrays, where positions count the model's own variables (metrics left out) and, among
them, the trainable ones:

    variables/<position>                  a weight, a moving statistic, a seed
    slots/<position>/<kind>               an optimizer slot of a trainable variable
    optimizer/<number>                    counters, learning rate, loss scale, ...
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.bucket_values import bucket_value, variable_values
from kdist.distribute.counters import most_advanced
from kdist.distribute.inner_loop import Store
from kdist.distribute.layout import Bucket
from kdist.distribute.optimizer import StoreOptimizer, updating_optimizers
from kdist.distribute.structure import unique
from kdist.distribute.values import raw_variable, to_numpy, write
from kdist.errors import ConfigError

Read = Callable[[str], np.ndarray]
Arrays = Iterator[tuple[str, np.ndarray]]


def own_variables(model: keras.Model) -> list[keras.Variable]:
    """Return a built model's variables without those of its metrics, in the model's order."""
    metrics = [*model.metrics, keras_adapter.loss_tracker(model)]
    of_metrics = {id(variable) for metric in metrics for variable in metric.variables}
    return [v for v in unique(model.variables) if id(v) not in of_metrics]


def capture(model: keras.Model, store: Store) -> Callable[[], Arrays]:
    """Take a snapshot between two steps; return what yields its arrays, at any time, on any thread.

    Values of this process are not copied: a later step that writes one of them moves on to new
    memory while the snapshot holds the old. Values of servers are fetched at once.
    """
    store.write_states_to_model()
    trainable = unique(model.trainable_variables)
    position_of = {id(variable): index for index, variable in enumerate(own_variables(model))}
    trainable_ids = {id(variable) for variable in trainable}
    rest = [
        (position_of[id(variable)], _snapshot(variable))
        for variable in own_variables(model)
        if id(variable) not in trainable_ids
    ]
    values, slots = _captured(store.optimizers)
    scalars = [_snapshot(variable) for variable in most_advanced(store.optimizers, _scalars)]

    def arrays() -> Arrays:
        for position, value in rest:
            yield f"variables/{position}", np.asarray(value)
        for index, value in _by_variable(values):
            yield f"variables/{position_of[id(trainable[index])]}", value
        for kind, held in slots.items():
            for index, value in _by_variable(held):
                yield f"slots/{index}/{kind}", value
        for number, value in enumerate(scalars):
            yield f"optimizer/{number}", np.asarray(value)

    return arrays


def restore_variables(model: keras.Model, read: Read) -> None:
    """Give a built model the weights of a checkpoint.

    Raises:
        ConfigError: If an array does not fit its variable.
    """
    for position, variable in enumerate(own_variables(model)):
        value = read(f"variables/{position}")
        _check_shape(f"variable {variable.path}", value.shape, tuple(variable.shape))
        variable.assign(value)


def restore(model: keras.Model, store: Store, read: Read, *, with_optimizer: bool = True) -> None:
    """Give a model and its store the values of a checkpoint; the chief calls it.

    Args:
        model: The built model.
        store: The place where its values live.
        read: Returns an array by its name.
        with_optimizer: Whether slots and counters are restored, too.

    Raises:
        ConfigError: If an array does not fit its variable.
    """
    restore_variables(model, read)
    store.read_from_model()
    for clone in store.optimizers if with_optimizer else ():
        for slot in clone.slots:
            bucket = clone.layout.buckets[slot.bucket_index]
            value = _slot_value(bucket, slot.kind, read)
            _check_shape("an optimizer slot", value.shape, tuple(slot.variable.shape))
            write(slot.variable, value)
        for number, variable in enumerate(_scalars(clone)):
            write(variable, read(f"optimizer/{number}"))


def _slot_value(bucket: Bucket, kind: int, read: Read) -> np.ndarray:
    """Return a bucket's slot; a whole variable's may have a shape of its own (Adafactor)."""
    member = bucket.members[0]
    if not bucket.is_flat and member.rows is None:
        return read(f"slots/{member.variable_index}/{kind}")
    return bucket_value(bucket, lambda index: read(f"slots/{index}/{kind}"))


def _captured(
    clones: Sequence[StoreOptimizer],
) -> tuple[list[tuple[Bucket, Any]], dict[int, list[tuple[Bucket, Any]]]]:
    """Return the values of all buckets, and by kind those of their slots."""
    values: list[tuple[Bucket, Any]] = []
    slots: dict[int, list[tuple[Bucket, Any]]] = {}
    for clone in clones:
        buckets = clone.layout.buckets
        values += [(b, _snapshot(v)) for b, v in zip(buckets, clone.buckets, strict=True)]
        for slot in clone.slots:
            held = slots.setdefault(slot.kind, [])
            held.append((buckets[slot.bucket_index], _snapshot(slot.variable)))
    return values, slots


def _by_variable(held: Sequence[tuple[Bucket, Any]]) -> Iterator[tuple[int, np.ndarray]]:
    values = [value for _, value in held]
    return variable_values([b for b, _ in held], lambda position: np.asarray(values[position]))


def _scalars(clone: StoreOptimizer) -> list[keras.Variable]:
    """Return an optimizer's variables that are no slots, those of inner optimizers included."""
    slots = {id(slot.variable) for slot in clone.slots}
    every = [*clone.optimizer.variables]
    for each in updating_optimizers(clone.optimizer):
        every += each.variables
    return [variable for variable in unique(every) if id(variable) not in slots]


def _snapshot(variable: Any) -> Any:
    """Return a value that later writes do not change: a tensor, or an array where that costs less.

    A tensor of this process shares the variable's memory until the variable is written, which
    suits the host's memory; an accelerator has none to spare.
    """
    raw = raw_variable(variable)
    if tf.executing_eagerly() and not tf.is_symbolic_tensor(getattr(raw, "handle", None)):
        tensor = tf.convert_to_tensor(raw)
        is_here = tf.DeviceSpec.from_string(tensor.device).device_type == "CPU"
        if is_here and tensor.device == tf.constant(0).device:
            return tensor
    return to_numpy(variable)


def _check_shape(what: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if tuple(found) != tuple(wanted):
        raise ConfigError(
            f"The checkpoint does not fit the model. Received: {tuple(found)} for {what} of shape "
            f"{tuple(wanted)}. Start a new run (resume=never)."
        )
