"""The values of variables in a graph, through its session: calls of few messages."""

import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

_sessions: "weakref.WeakKeyDictionary[Any, GraphValues]" = weakref.WeakKeyDictionary()
_fillings: "weakref.WeakKeyDictionary[Any, list[Any]]" = weakref.WeakKeyDictionary()


class GraphValues:
    """The values of a graph's variables, through its session."""

    def __init__(self, session: tf.compat.v1.Session):
        """Let `to_numpy` and `write` reach the variables of the session's graph."""
        self._session = session
        self._writers: dict[int, tuple[Any, Any]] = {}
        self._calls: dict[Hashable, tuple[list[Any], Any]] = {}
        _sessions[session.graph] = self
        with session.graph.as_default():
            for variable in tf.compat.v1.global_variables():
                self._writers[id(variable)] = _writer(variable)  # One by one costs more later.

    def fill_all(self) -> None:
        """Run what `fill` was given for the graph's variables."""
        for operation in _fillings.pop(self._session.graph, []):
            self.run(operation)

    def read(self, variables: Sequence[tf.Variable]) -> list[np.ndarray]:
        """Return variables' values, in one call."""
        with self._session.graph.as_default():
            return [np.asarray(value) for value in self._session.run(list(variables))]

    def call(self, key: Hashable, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns that is built when a key is new; see `values.call`."""
        fed = [np.asarray(a, object if isinstance(a, str | bytes) else None) for a in arguments]
        if key not in self._calls:
            with self._session.graph.as_default():
                given = [tf.compat.v1.placeholder(a.dtype, [None] * a.ndim) for a in fed]
                self._calls[key] = given, function(*given)
        given, found = self._calls[key]
        return self._session.run(found, dict(zip(given, fed, strict=True)))

    def run_all(
        self, variables: Sequence[tf.Variable], name: str, function: Callable[[Any], Any]
    ) -> None:
        """Run a function's operation for each variable, in one call."""
        keys = [(name, id(variable)) for variable in variables]
        with self._session.graph.as_default():
            for key, variable in zip(keys, variables, strict=True):
                if key not in self._calls:
                    self._calls[key] = [], function(variable)
        self._session.run([self._calls[key][1] for key in keys])

    def write(self, pairs: Sequence[tuple[tf.Variable, Any]]) -> None:
        """Set variables, in one call."""
        feeds = {self._writers[id(variable)][0]: np.asarray(value) for variable, value in pairs}
        self._session.run([self._writers[id(variable)][1] for variable, _ in pairs], feeds)

    def run(self, operation: Callable[[], Any]) -> None:
        """Run operations; they are added to the graph."""

        def ordered() -> tf.Tensor:
            operation()
            return tf.constant(0)

        traced = eagerly(tf.function(ordered, autograph=False).get_concrete_function)
        with self._session.graph.as_default():
            self._session.run(traced())


def _writer(variable: Any) -> tuple[Any, Any]:
    """Return a placeholder, and the operation that assigns what it is fed."""
    with tf.device(variable.device):
        given = tf.compat.v1.placeholder(variable.dtype, variable.shape)
        return given, variable.assign(given, read_value=False)


def session_of(raw: Any) -> GraphValues | None:
    """Return what reaches TensorFlow's variable in its graph; `None` for one of this process."""
    if not _sessions:
        return None
    try:
        handle = raw.handle
    except (AttributeError, ValueError):  # A distributed variable, outside a replica.
        return None
    return _sessions.get(handle.graph) if tf.is_symbolic_tensor(handle) else None


def fill_later(graph: tf.Graph, operation: Callable[[], Any]) -> None:
    """Remember operations that `GraphValues.fill_all` will run."""
    _fillings.setdefault(graph, []).append(operation)


def eagerly(function: Callable[[], Any]) -> Any:
    """Return `function()`, run eagerly, also while a graph is being built.

    Whether TensorFlow runs operations or records them is a property of the thread, so another
    thread does it.
    """
    if tf.executing_eagerly():
        return function()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()
