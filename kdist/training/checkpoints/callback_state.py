"""What callbacks remember: counters, best values, best weights.

Keras' callbacks do not say what their state is. So every attribute that has changed since
`on_train_begin`, and that is made of plain values, is taken as state. Attributes that have not
changed are settings: a run that goes on with another patience keeps the new one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kdist.training.checkpoints.plain_values import NotPlainError, decode, encode, fingerprint

# What Keras attaches to a callback, and `min_delta`, whose sign Keras turns once in each process.
_NOT_STATE = frozenset({"_model", "model", "params", "validation_data", "monitor_op", "min_delta"})

Arrays = dict[str, np.ndarray]
State = Mapping[str, Any]


@dataclass(frozen=True)
class _Attribute:
    """A plain attribute as it was encoded."""

    content: Any
    arrays: Arrays

    def fingerprint(self) -> Any:
        return fingerprint(self.content, self.arrays)


class CallbackStates:
    """The states of a run's callbacks, in order. Used by the chief only."""

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]):
        """Look at the callbacks as `on_train_begin` has left them."""
        self._callbacks = list(callbacks)
        self._settings: list[dict[str, Any]] = []
        self._first_values: list[dict[str, Any]] = []
        for index, callback in enumerate(self._callbacks):
            found = _plain_attributes(index, callback)
            self._settings.append({name: each.fingerprint() for name, each in found.items()})
            plain = {name: each.content for name, each in found.items() if not each.arrays}
            self._first_values.append(plain)

    def capture(self) -> tuple[list[State], Arrays]:
        """Return the states as JSON can hold them, and the arrays that belong to them."""
        all_arrays: Arrays = {}
        states: list[State] = []
        for index, callback in enumerate(self._callbacks):
            settings, attributes = self._settings[index], {}
            for name, each in _plain_attributes(index, callback).items():
                if name not in settings or settings[name] != each.fingerprint():
                    attributes[name] = each.content
                    all_arrays |= each.arrays
            states.append({"class": _class_name(callback), "attributes": attributes})
        return states, all_arrays

    def restore(self, states: Sequence[State], arrays: Mapping[str, np.ndarray]) -> None:
        """Give callbacks the states of those of the same class, in order; new ones stay as new."""
        by_class: dict[str, list[Mapping[str, Any]]] = {}
        for state in states:
            by_class.setdefault(state["class"], []).append(state["attributes"])
        for callback, first_values in zip(self._callbacks, self._first_values, strict=True):
            waiting = by_class.get(_class_name(callback))
            if waiting:
                for name, content in {**first_values, **waiting.pop(0)}.items():
                    setattr(callback, name, decode(content, arrays))


def prepare_to_go_on(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Get callbacks ready for a run that goes on; call it before `on_train_begin`."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True  # It would begin its file anew.


def _plain_attributes(index: int, callback: keras.callbacks.Callback) -> dict[str, _Attribute]:
    found = {}
    for name, value in vars(callback).items():
        arrays: Arrays = {}
        if name in _NOT_STATE:
            continue
        try:
            found[name] = _Attribute(encode(value, f"{index}/{name}", arrays), arrays)
        except NotPlainError:
            continue
    return found


def _class_name(callback: keras.callbacks.Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"
