"""The state of a store's optimizers by variable, as a plain Keras optimizer keeps it."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.bucket_values import variable_values
from kdist.distribute.buckets.spilled import is_large, spilled
from kdist.distribute.store.counters import most_advanced
from kdist.distribute.store.optimizer import StoreOptimizer, clone_optimizer, inner_optimizer
from kdist.distribute.values import to_numpy


def whole_and_parts(optimizer: Any) -> list[Any]:
    """Return an optimizer, the one behind its loss scale (or itself), and those inside that."""
    inner: Any = inner_optimizer(optimizer)
    return [optimizer, inner, *getattr(inner, "optimizers", ())]


class SlotMapping:
    """Per-variable optimizer state, in the order that a plain Keras optimizer keeps it."""

    def __init__(self, model: keras.Model, clones: list[StoreOptimizer]):
        """Map the slots of clones to the variables of a model."""
        self._clones = clones
        stand_ins = [_stand_in(variable) for variable in model.trainable_variables]
        pattern = clone_optimizer(model.optimizer)
        inner = inner_optimizer(pattern)
        with keras_adapter.recorded_slots(inner) as recorded:
            pattern.build(stand_ins)
        position = {id(variable): index for index, variable in enumerate(stand_ins)}
        kinds: dict[int, int] = {}
        self._slot_of: dict[int, tuple[int, int]] = {}
        for reference, slot in recorded:
            index = position[id(reference)]
            self._slot_of[id(slot)] = (index, kinds.get(index, 0))
            kinds[index] = kinds.get(index, 0) + 1
        self._pattern = pattern

    def values(self, number: int) -> Iterator[tuple[str, Any]]:
        """Yield ("0", value), ("1", value), ... as Keras' `save_own_variables` names them.

        Args:
            number: Of an optimizer in `whole_and_parts`.

        Yields:
            Names with arrays, or with something that becomes one.
        """
        pattern = whole_and_parts(self._pattern)[number]

        def listed(clone: StoreOptimizer) -> list[keras.Variable]:
            slots = {id(slot.variable) for slot in clone.slots}
            own = whole_and_parts(clone.optimizer)[number]
            return [variable for variable in own.variables if id(variable) not in slots]

        scalars = iter(most_advanced(self._clones, listed))
        for number, variable in enumerate(pattern.variables):
            if id(variable) in self._slot_of:
                yield str(number), self._slot_value(*self._slot_of[id(variable)])
            else:
                yield str(number), to_numpy(next(scalars))

    def _slot_value(self, variable_index: int, kind: int) -> Any:
        found = [
            (clone.layout.buckets[slot.bucket_index], slot.variable)
            for clone in self._clones
            for slot in clone.slots
            if slot.kind == kind
            and variable_index
            in {m.variable_index for m in clone.layout.buckets[slot.bucket_index].members}
        ]
        if is_large(found):
            return spilled(found)
        values = variable_values(
            [bucket for bucket, _ in found], lambda index: to_numpy(found[index][1])
        )
        return dict(values)[variable_index]


def _stand_in(variable: keras.Variable) -> keras.Variable:
    """Return a variable of one element with the rank, dtype and path of `variable`."""
    small = keras.Variable(np.zeros([1] * len(variable.shape)), dtype=variable.dtype)
    keras_adapter.set_path(small, variable.path, variable.name)
    return small
