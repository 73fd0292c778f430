"""The model's own optimizer while a store trains: what callbacks and `model.keras` see of it.

The store updates with clones. `model.optimizer` follows them: its learning rate and counter before
a hook (those of each optimizer inside a `MultiOptimizer`), its moving averages if it keeps any;
what a callback sets goes back to the clones. Slots are mapped from buckets to variables only when
a file is written.
"""

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import numpy as np

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.bucket_values import bucket_value, variable_values
from kdist.distribute.loops.inner_loop import Store
from kdist.distribute.store.optimizer import StoreOptimizer, inner_optimizer
from kdist.distribute.values import to_numpy, write
from kdist.training.slot_mapping import SlotMapping, whole_and_parts


class _Settings(NamedTuple):
    """Of each part of an optimizer: its learning rate, if that is a number, and its counter."""

    rates: list[float | None]
    counts: list[int]


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
        self._seen = self._settings()

    def pull(self) -> None:
        """Show the clones' counters, learning rates and averages in the model's optimizer."""
        clones = self._clones()
        for number, mine in enumerate(_parts(self._model.optimizer)):
            # One inside another counts where it has variables: not on every server.
            theirs = [_parts(clone.optimizer)[number] for clone in clones[: None if number else 1]]
            counts = [to_numpy(keras_adapter.own_iterations(each)) for each in theirs]
            keras_adapter.own_iterations(mine).assign(max(counts))
            rate = _rate_variable(theirs[0])
            if rate is not None:
                mine.learning_rate = float(to_numpy(rate))
        self._pull_scale()
        self._seen = self._settings()
        if self._follows_averages:
            averages = keras_adapter.ema_averages(inner_optimizer(self._model.optimizer))
            for index, value in self._averages_by_variable():
                averages[index].assign(value)

    def push(self) -> bool:
        """Hand what a callback set to the clones; return whether a counter is among it."""
        seen, now = self._seen, self._settings()
        self._seen = now
        for number, rate in enumerate(now.rates):
            if rate is not None and rate != seen.rates[number]:
                self._set_rate(number, rate)
        for number, count in enumerate(now.counts):
            if count != seen.counts[number]:
                self._set_count(number, count)
        if self._follows_averages:
            self._push_averages()
        return now.counts != seen.counts

    def _pull_scale(self) -> None:
        """Show the loss scale, which an optimizer has only once it is built."""
        mine, theirs = self._model.optimizer, self._clones()[0].optimizer
        if theirs is mine or not isinstance(theirs, keras.optimizers.LossScaleOptimizer):
            return
        scale = to_numpy(theirs.dynamic_scale)
        if not hasattr(mine, "dynamic_scale"):
            mine.dynamic_scale = keras.Variable(scale, dtype="float32", trainable=False)
        mine.dynamic_scale.assign(scale)

    @property
    def rates(self) -> list[float | None]:
        """Return the learning rates that are numbers; `None` stands where a schedule decides."""
        return self._seen.rates

    @property
    def counts(self) -> list[int]:
        """Return how often each optimizer has applied gradients."""
        return self._seen.counts

    def set(self, rates: Sequence[float | None], counts: Sequence[int] | None = None) -> None:
        """Set learning rates, and counters if there are any, of the model's and of all clones."""
        parts = _parts(self._model.optimizer)
        for number, rate in enumerate(rates):
            if rate is not None:
                parts[number].learning_rate = rate
                self._set_rate(number, rate)
        for number, count in enumerate(counts or ()):
            keras_adapter.own_iterations(parts[number]).assign(count)
            self._set_count(number, count)
        self._seen = self._settings()

    def _set_rate(self, number: int, rate: float) -> None:
        for clone in self._clones():
            variable = _rate_variable(_parts(clone.optimizer)[number])
            if variable is not None:
                write(variable, rate)

    def _set_count(self, number: int, count: int) -> None:
        for clone in self._clones():
            write(keras_adapter.own_iterations(_parts(clone.optimizer)[number]), count)

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

    def _settings(self) -> "_Settings":
        parts = _parts(self._model.optimizer)
        rates = [_rate_variable(each) for each in parts]
        return _Settings(
            [None if rate is None else float(to_numpy(rate)) for rate in rates],
            [int(to_numpy(keras_adapter.own_iterations(each))) for each in parts],
        )

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

    def _push_averages(self) -> None:
        mine = [
            to_numpy(v) for v in keras_adapter.ema_averages(inner_optimizer(self._model.optimizer))
        ]
        for clone in self._clones():
            averages = keras_adapter.ema_averages(clone.inner)
            for bucket, average in zip(clone.layout.buckets, averages, strict=True):
                value = bucket_value(bucket, lambda index: mine[index])
                if not np.array_equal(value, to_numpy(average), equal_nan=True):
                    write(average, value)

    @contextmanager
    def saves_state(self) -> Iterator[None]:
        """Let Keras save the clones' state as that of the model's optimizer, inside the block.

        Nothing happens unless something is saved; then values are fetched one variable at a time,
        and nothing is held twice.
        """
        mapping = functools.cache(lambda: SlotMapping(self._model, self._clones()))
        saved = whole_and_parts(self._model.optimizer)
        for number, optimizer in enumerate(saved):
            optimizer.save_own_variables = types.MethodType(_writer(mapping, number), optimizer)
        try:
            yield
        finally:
            for optimizer in saved:
                vars(optimizer).pop("save_own_variables", None)


def _parts(optimizer: Any) -> list[Any]:
    """Return the optimizer behind a loss scale, and those inside it if it is a `MultiOptimizer`."""
    return whole_and_parts(optimizer)[1:]


def _rate_variable(optimizer: Any) -> Any:
    rate = keras_adapter.learning_rate_setting(optimizer)
    return rate if isinstance(rate, keras.Variable) else None


def _writer(mapping: Callable[[], SlotMapping], number: int) -> Any:
    """Return a `save_own_variables(self, store)` for one of `whole_and_parts`."""

    def save_own_variables(optimizer: Any, store: Any) -> None:
        del optimizer
        for name, value in mapping().values(number):
            store[name] = value

    return save_own_variables
