"""Reads and writes variables, whether they live in this process or in a session's graph.

A between-graph worker holds its parameter store in a `tf.Graph` of its own, whose values a session
reaches. Whoever reads or writes variables of a store does it here, and need not know which it is.
"""

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_sessions: "weakref.WeakKeyDictionary[Any, GraphValues]" = weakref.WeakKeyDictionary()
_fillings: "weakref.WeakKeyDictionary[Any, list[Any]]" = weakref.WeakKeyDictionary()


def to_numpy(variable: Any) -> np.ndarray:
    """Return a variable's value as an array, with its own dtype."""
    raw = raw_variable(variable)
    session = _session_of(raw)
    if session is not None:
        return session.read(raw)
    return np.asarray(eagerly(raw.numpy))


def read_rows(variable: Any, first: int, end: int) -> np.ndarray:
    """Return rows `[first, end)` of a variable; nothing else is read or sent."""
    raw = raw_variable(variable)
    session = _session_of(raw)
    if session is not None:
        return session.read_rows(raw, first, end)
    with tf.device(raw.device):
        return tf.gather(raw, tf.range(first, end)).numpy()


def write(variable: Any, value: Any) -> None:
    """Give a variable a value of its own shape."""
    raw = raw_variable(variable)
    session = _session_of(raw)
    if session is not None:
        session.write(raw, value)
    else:
        raw.assign(value)


def write_rows(variable: Any, first: int, rows: np.ndarray) -> bool:
    """Write rows from `first` on, if the variable can be written in part; return whether."""
    raw = raw_variable(variable)
    if _session_of(raw) is not None:
        return False

    @tf.function(autograph=False)  # Only a graph knows the shape of a variable that is elsewhere.
    def update(places: tf.Tensor, values: tf.Tensor) -> None:
        with tf.device(raw.device):
            raw.scatter_nd_update(places[:, None], values)

    update(tf.range(first, first + len(rows)), tf.constant(rows))
    return True


def first_value(make: Callable[[], Any], shape: Any, dtype: Any) -> Any:
    """Return what to create a variable of a store with: `make()`, an array or a tensor.

    In a graph it is zeros instead: a graph should not carry a model's weights. There the chief
    writes the values once its session runs.
    """
    return make() if tf.executing_eagerly() else tf.zeros(shape, dtype)


def fill(variable: Any, operation: Callable[[], Any]) -> None:
    """Run operations that give a new variable its first value where it lives.

    They run now; in a graph, when the chief's session initializes the graph's variables.
    """
    if tf.executing_eagerly():
        operation()
    else:
        _fillings.setdefault(raw_variable(variable).graph, []).append(operation)


def run(variable: Any, operation: Callable[[], Any]) -> None:
    """Run TensorFlow operations on variables: now, or in the session of the variables' graph.

    Args:
        variable: One of the variables.
        operation: Calls the operations; its result is dropped.
    """
    session = _session_of(raw_variable(variable))
    if session is None:
        operation()
    else:
        session.run(operation)


def eagerly(function: Callable[[], Any]) -> Any:
    """Return `function()`, run eagerly, also while a graph is being built.

    Whether TensorFlow runs operations or records them is a property of the thread, so another
    thread does it.
    """
    if tf.executing_eagerly():
        return function()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


class GraphValues:
    """The values of a graph's variables, through its session."""

    def __init__(self, session: tf.compat.v1.Session):
        """Let `to_numpy` and `write` reach the variables of the session's graph."""
        self._session = session
        self._writers: dict[int, tuple[Any, Any]] = {}
        self._row_readers: dict[int, tuple[Any, Any]] = {}
        _sessions[session.graph] = self
        with session.graph.as_default():
            for variable in tf.compat.v1.global_variables():
                self._writers[id(variable)] = _writer(variable)  # One by one costs more later.

    def fill_all(self) -> None:
        """Run what `fill` was given for the graph's variables."""
        for operation in _fillings.pop(self._session.graph, []):
            self.run(operation)

    def read(self, variable: tf.Variable) -> np.ndarray:
        """Return a variable's value."""
        with self._session.graph.as_default():
            return np.asarray(self._session.run(variable))

    def read_rows(self, variable: tf.Variable, first: int, end: int) -> np.ndarray:
        """Return rows of a variable."""
        if id(variable) not in self._row_readers:
            with self._session.graph.as_default(), tf.device(variable.device):
                given = tf.compat.v1.placeholder(tf.int32, [2])
                rows = tf.gather(variable, tf.range(given[0], given[1]))
                self._row_readers[id(variable)] = given, rows
        given, rows = self._row_readers[id(variable)]
        return self._session.run(rows, {given: [first, end]})

    def write(self, variable: tf.Variable, value: Any) -> None:
        """Set a variable."""
        given, assign = self._writers[id(variable)]
        self._session.run(assign, {given: np.asarray(value)})

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


def raw_variable(variable: Any) -> Any:
    """Return TensorFlow's variable behind one of Keras'."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _session_of(raw: Any) -> GraphValues | None:
    if not _sessions:
        return None
    try:
        handle = raw.handle
    except (AttributeError, ValueError):  # A distributed variable, outside a replica.
        return None
    return _sessions.get(handle.graph) if tf.is_symbolic_tensor(handle) else None
