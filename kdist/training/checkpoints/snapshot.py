"""The values of a run as they are at one step, under the names that `canonical` explains."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute.buckets.bucket_values import variable_values
from kdist.distribute.buckets.held_values import Held, hold, release
from kdist.distribute.buckets.layout import Bucket
from kdist.distribute.loops.inner_loop import Store
from kdist.distribute.model.structure import unique
from kdist.distribute.values import raw_variable
from kdist.training.checkpoints.arrays import Value
from kdist.training.checkpoints.large_tables import can_be_copied, streamed
from kdist.training.checkpoints.positions import (
    is_of_table,
    kept_on_servers,
    own_variables,
    scalars,
)
from kdist.training.checkpoints.shards import SharedFolder

# From this size on a table that only servers hold is not fetched whole.
STREAMED_BYTES = 64 << 20


class Snapshot:
    """The arrays of a run at one step, yielded when they are asked for, on any thread.

    Attributes:
        is_live: Whether some of them are read only then, so that no step may run before.
    """

    def __init__(
        self,
        model: keras.Model,
        store: Store,
        *,
        copy_bytes: int = 0,
        shared: SharedFolder | None = None,
    ):
        """Take a snapshot; see `capture`."""
        store.write_states_to_model()
        self._shared = shared
        self._trainable = unique(model.trainable_variables)
        own = own_variables(model)
        self._position_of = {id(variable): index for index, variable in enumerate(own)}
        trainable_ids = {id(variable) for variable in self._trainable}
        self._rest = [
            (self._position_of[id(variable)], variable)
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
                captured = self._slots.setdefault(slot.kind, _Captured(kept))
                captured.add(buckets[slot.bucket_index], slot.variable)
        self._scalars = scalars(store.optimizers[0])
        self._held: dict[int, Held] = {}
        self.is_live = self._hold(copy_bytes)

    def __call__(self) -> Iterator[tuple[str, Value]]:
        """Yield names and values."""
        held = self._held
        for position, variable in self._rest:
            yield f"variables/{position}", np.asarray(held[id(variable)])
        for index, value in self._values.by_variable(held, self._shared):
            yield f"variables/{self._position_of[id(self._trainable[index])]}", value
        for kind, captured in self._slots.items():
            for index, value in captured.by_variable(held, self._shared):
                yield f"slots/{index}/{kind}", value
        for number, variable in enumerate(self._scalars):
            yield f"optimizer/{number}", np.asarray(held[id(variable)])

    def release(self) -> None:
        """Let go of what servers hold for this snapshot; it must not be asked afterwards."""
        release(list(self._held.values()))

    def _hold(self, copy_bytes: int) -> bool:
        """Hold all values as they are now; return whether tables were too large for that."""
        captured = [self._values, *self._slots.values()]
        tables = [variable for each in captured for variable in each.tables()]
        is_live = not can_be_copied([raw_variable(v) for v in tables], copy_bytes)
        held = [variable for _, variable in self._rest]
        held += [variable for each in captured for variable in each.others()] + self._scalars
        held += [] if is_live else tables
        self._held = {id(v): value for v, value in zip(held, hold(held), strict=True)}
        if is_live:
            self._held |= {id(variable): Held(raw_variable(variable)) for variable in tables}
        return is_live


class _Captured:
    """Buckets with their variables; those of large tables by themselves."""

    def __init__(self, kept: frozenset[int]):
        self._kept = kept
        self._others: list[tuple[Bucket, Any]] = []
        self._tables: dict[int, list[tuple[Bucket, Any]]] = {}

    def add(self, bucket: Bucket, variable: Any) -> None:
        if is_of_table(bucket, variable, self._kept):
            index = bucket.members[0].variable_index
            self._tables.setdefault(index, []).append((bucket, variable))
        else:
            self._others.append((bucket, variable))

    def tables(self) -> list[Any]:
        return [variable for pieces in self._tables.values() for _, variable in pieces]

    def others(self) -> list[Any]:
        return [variable for _, variable in self._others]

    def by_variable(
        self, held: Mapping[int, Held], shared: SharedFolder | None
    ) -> Iterator[tuple[int, Value]]:
        others = self._others
        yield from variable_values(
            [bucket for bucket, _ in others],
            lambda position: np.asarray(held[id(others[position][1])]),
        )
        for index, pieces in self._tables.items():
            yield index, streamed([(b, held[id(v)]) for b, v in pieces], shared)


def _num_bytes(variable: keras.Variable) -> int:
    return int(np.prod(variable.shape, dtype=np.int64)) * tf.as_dtype(variable.dtype).size
