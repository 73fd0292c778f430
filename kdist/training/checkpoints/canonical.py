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
from kdist.distribute.inner_loop import Store
from kdist.distribute.layout import Bucket
from kdist.distribute.optimizer import StoreOptimizer, updating_optimizers
from kdist.distribute.structure import unique
from kdist.distribute.values import raw_variable, to_numpy, write
from kdist.errors import ConfigError
from kdist.training.checkpoints.format import Value
from kdist.training.checkpoints.large_tables import ReadRows, restore_piece, streamed

# From this size on a table that only servers hold is not fetched whole.
STREAMED_BYTES = 64 << 20

Read = Callable[[str], np.ndarray]


def own_variables(model: keras.Model) -> list[keras.Variable]:
    """Return a built model's variables without those of its metrics, in the model's order."""
    metrics = [*model.metrics, keras_adapter.loss_tracker(model)]
    of_metrics = {id(variable) for metric in metrics for variable in metric.variables}
    return [v for v in unique(model.variables) if id(v) not in of_metrics]


class Snapshot:
    """The arrays of a run at one step, yielded when they are asked for, on any thread.

    Attributes:
        is_live: Whether some of them are read only then, so that no step may run before.
    """

    def __init__(self, model: keras.Model, store: Store):
        """Take a snapshot; see `capture`."""
        store.write_states_to_model()
        self._trainable = unique(model.trainable_variables)
        own = own_variables(model)
        self._position_of = {id(variable): index for index, variable in enumerate(own)}
        trainable_ids = {id(variable) for variable in self._trainable}
        self._rest = [
            (self._position_of[id(variable)], _snapshot(variable))
            for variable in own
            if id(variable) not in trainable_ids
        ]
        kept = frozenset(
            index
            for index in kept_on_servers(self._trainable)
            if _num_bytes(self._trainable[index]) > STREAMED_BYTES
        )
        self._values = _Captured(kept)
        self._slots: dict[int, _Captured] = {}
        for clone in store.optimizers:
            buckets = clone.layout.buckets
            for bucket, variable in zip(buckets, clone.buckets, strict=True):
                self._values.add(bucket, variable)
            for slot in clone.slots:
                held = self._slots.setdefault(slot.kind, _Captured(kept))
                held.add(buckets[slot.bucket_index], slot.variable)
        self._scalars = [_snapshot(variable) for variable in _scalars(store.optimizers[0])]
        self.is_live = bool(kept)

    def __call__(self) -> Iterator[tuple[str, Value]]:
        """Yield names and values."""
        for position, value in self._rest:
            yield f"variables/{position}", np.asarray(value)
        for index, value in self._values.by_variable():
            yield f"variables/{self._position_of[id(self._trainable[index])]}", value
        for kind, held in self._slots.items():
            for index, value in held.by_variable():
                yield f"slots/{index}/{kind}", value
        for number, value in enumerate(self._scalars):
            yield f"optimizer/{number}", np.asarray(value)


class _Captured:
    """Buckets with their values: snapshots, or of large tables the variables themselves."""

    def __init__(self, kept: frozenset[int]):
        self._kept = kept
        self._held: list[tuple[Bucket, Any]] = []
        self._tables: dict[int, list[tuple[Bucket, Any]]] = {}

    def add(self, bucket: Bucket, variable: Any) -> None:
        index = bucket.members[0].variable_index
        if index in self._kept and tuple(variable.shape) == tuple(bucket.shape):
            self._tables.setdefault(index, []).append((bucket, variable))
        else:
            self._held.append((bucket, _snapshot(variable)))

    def by_variable(self) -> Iterator[tuple[int, Value]]:
        values = [value for _, value in self._held]
        yield from variable_values(
            [bucket for bucket, _ in self._held], lambda position: np.asarray(values[position])
        )
        for index, pieces in self._tables.items():
            yield index, streamed(pieces)


def capture(model: keras.Model, store: Store) -> Snapshot:
    """Take a snapshot between two steps.

    Values of this process are not copied: a later step that writes one of them moves on to new
    memory while the snapshot holds the old. Values of servers are fetched at once, except for
    tables that only servers hold, which pass through in blocks when they are written.
    """
    return Snapshot(model, store)


def kept_on_servers(trainable: Sequence[keras.Variable]) -> frozenset[int]:
    """Return the positions of tables that the model has no value of."""
    return frozenset(
        index for index, each in enumerate(trainable) if not keras_adapter.has_value(each)
    )


def restore_variables(model: keras.Model, read: Read) -> None:
    """Give a built model the weights of a checkpoint, but for tables that only servers hold.

    Raises:
        ConfigError: If an array does not fit its variable.
    """
    for position, variable in enumerate(own_variables(model)):
        if keras_adapter.has_value(variable):
            value = read(f"variables/{position}")
            _check_shape(f"variable {variable.path}", value.shape, tuple(variable.shape))
            variable.assign(value)


def restore(
    model: keras.Model,
    store: Store,
    read: Read,
    *,
    read_rows: ReadRows | None = None,
    with_optimizer: bool = True,
) -> None:
    """Give a model and its store the values of a checkpoint; the chief calls it.

    Args:
        model: The built model.
        store: The place where its values live.
        read: Returns an array by its name.
        read_rows: Returns rows of an array, by name, first and end; by default all are read.
        with_optimizer: Whether slots and counters are restored, too.

    Raises:
        ConfigError: If an array does not fit its variable.
    """
    rows = read_rows or (lambda name, first, end: read(name)[first:end])
    restore_variables(model, read)
    store.read_from_model()
    trainable: list[Any] = unique(model.trainable_variables)
    kept = kept_on_servers(trainable)
    position_of = {id(variable): index for index, variable in enumerate(own_variables(model))}
    for clone in store.optimizers:
        buckets = clone.layout.buckets
        for bucket, variable in zip(buckets, clone.buckets, strict=True):
            index = bucket.members[0].variable_index
            if index in kept:
                name = f"variables/{position_of[id(trainable[index])]}"
                restore_piece((bucket, variable), name, int(trainable[index].shape[0]), rows)
        for slot in clone.slots if with_optimizer else ():
            bucket = buckets[slot.bucket_index]
            index = bucket.members[0].variable_index
            if index in kept and tuple(slot.variable.shape) == tuple(bucket.shape):
                name = f"slots/{index}/{slot.kind}"
                restore_piece((bucket, slot.variable), name, int(trainable[index].shape[0]), rows)
                continue
            value = _slot_value(bucket, slot.kind, read)
            _check_shape("an optimizer slot", value.shape, tuple(slot.variable.shape))
            write(slot.variable, value)
        for number, variable in enumerate(_scalars(clone) if with_optimizer else ()):
            write(variable, read(f"optimizer/{number}"))


def _slot_value(bucket: Bucket, kind: int, read: Read) -> np.ndarray:
    """Return a bucket's slot; a whole variable's may have a shape of its own (Adafactor)."""
    member = bucket.members[0]
    if not bucket.is_flat and member.rows is None:
        return read(f"slots/{member.variable_index}/{kind}")
    return bucket_value(bucket, lambda index: read(f"slots/{index}/{kind}"))


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


def _num_bytes(variable: keras.Variable) -> int:
    return int(np.prod(variable.shape, dtype=np.int64)) * tf.as_dtype(variable.dtype).size


def _check_shape(what: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if tuple(found) != tuple(wanted):
        raise ConfigError(
            f"The checkpoint does not fit the model. Received: {tuple(found)} for {what} of shape "
            f"{tuple(wanted)}. Start a new run (resume=never)."
        )
