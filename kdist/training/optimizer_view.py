"""The model's own optimizer while a store trains: what callbacks and `model.keras` see of it.

The store updates with clones. `model.optimizer` follows them: its learning rate and counter before
a hook, its moving averages if it keeps any; what a callback sets goes back to the clones. Slots are
mapped from buckets to variables only when a file is written.
"""

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.bucket_values import bucket_value, variable_values
from kdist.distribute.buckets.spilled import is_large, spilled
from kdist.distribute.loops.inner_loop import Store
from kdist.distribute.store.counters import most_advanced
from kdist.distribute.store.optimizer import StoreOptimizer, clone_optimizer, inner_optimizer
from kdist.distribute.values import to_numpy, write


class OptimizerView:
    """Keeps `model.optimizer` and the clones of a store alike. Used by the chief."""

    def __init__(self, model: keras.Model, store: Store, *, follows_averages: bool):
        """Look at a model's optimizer.

        Args:
            model: The compiled model.
            store: The store whose clones do the updates.
            follows_averages: Whether callbacks may read or swap moving averages.
        """
        self._model = model
        self._store = store
        inner = inner_optimizer(model.optimizer)
        self._follows_averages = follows_averages and bool(getattr(inner, "use_ema", False))
        if self._follows_averages and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._learning_rate = self._settable_rate()

    def pull(self) -> None:
        """Show the clones' counter, learning rate and averages in the model's optimizer."""
        mine = inner_optimizer(self._model.optimizer)
        clone = self._clones()[0].inner
        keras_adapter.own_iterations(mine).assign(to_numpy(keras_adapter.own_iterations(clone)))
        rate = self._rate_variable(clone)
        if rate is not None:
            mine.learning_rate = float(to_numpy(rate))
            self._learning_rate = self._settable_rate()
        if self._follows_averages:
            averages = keras_adapter.ema_averages(mine)
            for index, value in self._averages_by_variable():
                averages[index].assign(value)

    def push(self) -> bool:
        """Hand what a callback set to the clones; return whether anything changed."""
        changed = False
        rate = self._settable_rate()
        if rate is not None and rate != self._learning_rate:
            self.set_learning_rate(rate)
            changed = True
        if self._follows_averages:
            changed = self._push_averages() or changed
        return changed

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the model's optimizer and of every clone."""
        inner_optimizer(self._model.optimizer).learning_rate = rate
        for clone in self._clones():
            variable = self._rate_variable(clone.inner)
            if variable is not None:
                write(variable, rate)
        self._learning_rate = self._settable_rate()

    @property
    def learning_rate(self) -> float | None:
        """Return the learning rate of the next step; `None` where there are several."""
        clone = self._clones()[0].inner
        rate = keras_adapter.learning_rate_setting(clone)
        if rate is None:
            return None
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            rate = rate(to_numpy(keras_adapter.own_iterations(clone)))
        elif isinstance(rate, keras.Variable):
            rate = to_numpy(rate)
        elif callable(rate):
            rate = rate()
        return float(np.asarray(keras.ops.convert_to_numpy(rate)))

    @property
    def settable_learning_rate(self) -> float | None:
        """Return the learning rate if it is a number, `None` if a schedule decides."""
        return self._learning_rate

    def _settable_rate(self) -> float | None:
        variable = self._rate_variable(inner_optimizer(self._model.optimizer))
        return None if variable is None else float(to_numpy(variable))

    @staticmethod
    def _rate_variable(optimizer: Any) -> Any:
        rate = keras_adapter.learning_rate_setting(optimizer)
        return rate if isinstance(rate, keras.Variable) else None

    def _clones(self) -> list[StoreOptimizer]:
        return self._store.optimizers

    def _averages_by_variable(self) -> Iterator[tuple[int, np.ndarray]]:
        found = [
            (bucket, average)
            for clone in self._clones()
            for bucket, average in zip(
                clone.layout.buckets, keras_adapter.ema_averages(clone.inner), strict=True
            )
        ]
        yield from variable_values(
            [bucket for bucket, _ in found], lambda index: to_numpy(found[index][1])
        )

    def _push_averages(self) -> bool:
        mine = [
            to_numpy(v) for v in keras_adapter.ema_averages(inner_optimizer(self._model.optimizer))
        ]
        changed = False
        for clone in self._clones():
            averages = keras_adapter.ema_averages(clone.inner)
            for bucket, average in zip(clone.layout.buckets, averages, strict=True):
                value = bucket_value(bucket, lambda index: mine[index])
                if not np.array_equal(value, to_numpy(average), equal_nan=True):
                    write(average, value)
                    changed = True
        return changed

    @contextmanager
    def saves_state(self) -> Iterator[None]:
        """Let Keras save the clones' state as that of the model's optimizer, inside the block.

        Nothing happens unless something is saved; then values are fetched one variable at a time,
        and nothing is held twice.
        """
        outer = self._model.optimizer
        inner = inner_optimizer(outer)
        mapping = functools.cache(lambda: SlotMapping(self._model, self._clones()))
        for optimizer, is_inner in {
            id(outer): (outer, inner is outer),
            id(inner): (inner, True),
        }.values():
            optimizer.save_own_variables = types.MethodType(_writer(mapping, is_inner), optimizer)
        try:
            yield
        finally:
            for optimizer in {id(outer): outer, id(inner): inner}.values():
                del optimizer.save_own_variables


def _writer(mapping: Callable[[], "SlotMapping"], is_inner: bool) -> Any:
    """Return a `save_own_variables(self, store)` for the outer or the inner optimizer."""

    def save_own_variables(optimizer: Any, store: Any) -> None:
        del optimizer
        for name, value in mapping().values(is_inner):
            store[name] = value

    return save_own_variables


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
        self._outer = pattern
        self._inner = inner

    def values(self, is_inner: bool) -> Iterator[tuple[str, Any]]:
        """Yield ("0", value), ("1", value), ... as Keras' `save_own_variables` names them.

        Each is an array, or something that becomes one.
        """
        pattern = self._inner if is_inner else self._outer

        def listed(clone: StoreOptimizer) -> list[keras.Variable]:
            slots = {id(slot.variable) for slot in clone.slots}
            own = clone.inner if is_inner else clone.optimizer
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
