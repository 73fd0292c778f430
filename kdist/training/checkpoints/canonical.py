"""The values of a run by variable: what a checkpoint holds, whatever mode, buckets or servers.

Names of arrays, where positions count the model's own variables (metrics left out) and, among
them, the trainable ones:

    variables/<position>                  a weight, a moving statistic, a seed
    slots/<position>/<kind>               an optimizer slot of a trainable variable
    optimizer/<number>                    counters, learning rate, loss scale, ...
"""

from collections.abc import Callable, Container, Iterable, Iterator

import keras
import numpy as np

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.bucket_values import bucket_value
from kdist.distribute.buckets.held_values import is_elsewhere
from kdist.distribute.buckets.layout import Bucket, Rows
from kdist.distribute.loops.inner_loop import Store
from kdist.distribute.model.structure import unique
from kdist.distribute.store.optimizer import StoreOptimizer
from kdist.distribute.values import write_each
from kdist.errors import ConfigError
from kdist.training.checkpoints.arrays import Block
from kdist.training.checkpoints.large_tables import (
    Piece,
    ReadBlocks,
    restore_table,
    write_no_rows,
)
from kdist.training.checkpoints.positions import (
    is_of_table,
    kept_on_servers,
    own_variables,
    scalars,
)
from kdist.training.checkpoints.shards import SharedFolder
from kdist.training.checkpoints.snapshot import Snapshot

Read = Callable[[str], np.ndarray]
_ADVICE = "Build the model that was trained, or start a new run."


def capture(
    model: keras.Model, store: Store, *, copy_bytes: int = 0, shared: SharedFolder | None = None
) -> Snapshot:
    """Take a snapshot between two steps; `release` it when it is written.

    Values stay where they are and are not copied: a later step that writes one of them moves on to
    new memory while the snapshot holds the old. Tables that only servers hold are copied there.

    Args:
        model: The built model.
        store: The place where its values live.
        copy_bytes: How much of tables each server may copy. If it is not enough, none are copied:
            they are read when they are written, and no step may run before.
        shared: How servers write tables into the folder of a checkpoint themselves; without it
            tables pass through this process in blocks.
    """
    return Snapshot(model, store, copy_bytes=copy_bytes, shared=shared)


def prepare(model: keras.Model, store: Store, *, copy_bytes: int = 0) -> None:
    """Make the first snapshot of servers' values no slower than others; no step may run.

    A server copies a table when it is read once any of its rows was written by themselves. Before
    that the first of them would have to do it, in the middle of its step.
    """
    if is_elsewhere(store.optimizers[0].buckets[0]):
        for pieces in _tables(model, store).values():
            write_no_rows(pieces)
        capture(model, store, copy_bytes=copy_bytes).release()


def restore_variables(model: keras.Model, read: Read) -> None:
    """Give a built model the weights of a checkpoint, but for tables that only servers hold.

    Raises:
        ConfigError: If an array does not fit its variable.
    """
    for position, variable in enumerate(own_variables(model)):
        if keras_adapter.has_value(variable):
            try:
                value = read(f"variables/{position}")
            except KeyError as error:
                raise ConfigError(
                    f"The checkpoint does not fit the model. Received: no value for variable "
                    f"{variable.path}. {_ADVICE}"
                ) from error
            _check_shape(f"variable {variable.path}", value.shape, tuple(variable.shape))
            variable.assign(value)


def holds_optimizer(names: Container[str], store: Store) -> bool:
    """Return whether a checkpoint has all that a store's optimizers keep, by the names it has.

    Settings decide about it, too: an Adam with `amsgrad` has one slot more.
    """
    wanted = [f"optimizer/{number}" for number in range(len(scalars(store.optimizers[0])))]
    for clone in store.optimizers:
        for slot in clone.slots:
            members = clone.layout.buckets[slot.bucket_index].members
            wanted += [f"slots/{member.variable_index}/{slot.kind}" for member in members]
    return all(name in names for name in wanted)


def restore(
    model: keras.Model,
    store: Store,
    read: Read,
    *,
    read_blocks: ReadBlocks | None = None,
    with_optimizer: bool = True,
) -> None:
    """Give a model and its store the values of a checkpoint; the chief calls it.

    Args:
        model: The built model.
        store: The place where its values live.
        read: Returns an array by its name.
        read_blocks: Yields an array by its name in blocks of rows; by default all at once.
        with_optimizer: Whether slots and counters are restored, too.

    Raises:
        ConfigError: If an array does not fit its variable.
    """
    restore_variables(model, read)
    store.read_from_model()
    if with_optimizer:
        write_each(_optimizer_values(store.optimizers, _kept(model), read))
    for name, pieces in _tables(model, store, with_slots=with_optimizer).items():
        restore_table(pieces, read_blocks(name) if read_blocks else [_whole(read(name))])


def _kept(model: keras.Model) -> frozenset[int]:
    return kept_on_servers(unique(model.trainable_variables))


def _tables(model: keras.Model, store: Store, *, with_slots: bool = True) -> dict[str, list[Piece]]:
    """Return the pieces of the arrays that only servers hold, by name."""
    trainable, kept = unique(model.trainable_variables), _kept(model)
    position_of = {id(variable): index for index, variable in enumerate(own_variables(model))}
    tables: dict[str, list[Piece]] = {}
    for clone in store.optimizers:
        buckets = clone.layout.buckets
        for bucket, variable in zip(buckets, clone.buckets, strict=True):
            if (index := bucket.members[0].variable_index) in kept:
                name = f"variables/{position_of[id(trainable[index])]}"
                tables.setdefault(name, []).append((bucket, variable))
        for slot in clone.slots if with_slots else ():
            bucket = buckets[slot.bucket_index]
            if is_of_table(bucket, slot.variable, kept):
                name = f"slots/{bucket.members[0].variable_index}/{slot.kind}"
                tables.setdefault(name, []).append((bucket, slot.variable))
    return tables


def _optimizer_values(
    clones: Iterable[StoreOptimizer], kept: frozenset[int], read: Read
) -> Iterator[tuple[keras.Variable, np.ndarray]]:
    """Yield the variables of clones that are no tables, each with its value."""
    for clone in clones:
        for slot in clone.slots:
            bucket = clone.layout.buckets[slot.bucket_index]
            if not is_of_table(bucket, slot.variable, kept):
                value = _slot_value(bucket, slot.kind, read)
                _check_shape("an optimizer slot", value.shape, tuple(slot.variable.shape))
                yield slot.variable, value
        for number, variable in enumerate(scalars(clone)):
            yield variable, read(f"optimizer/{number}")


def _whole(value: np.ndarray) -> Block:
    return Rows(first=0, stop=len(value)), value


def _slot_value(bucket: Bucket, kind: int, read: Read) -> np.ndarray:
    """Return a bucket's slot; a whole variable's may have a shape of its own (Adafactor)."""
    member = bucket.members[0]
    if not bucket.is_flat and member.rows is None:
        return read(f"slots/{member.variable_index}/{kind}")
    return bucket_value(bucket, lambda index: read(f"slots/{index}/{kind}"))


def _check_shape(what: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if tuple(found) != tuple(wanted):
        raise ConfigError(
            f"The checkpoint does not fit the model. Received: {tuple(found)} for {what} of shape "
            f"{tuple(wanted)}. {_ADVICE}"
        )
