"""Reads and writes variables, whether they live in this process or in a session's graph.

A between-graph worker holds its parameter store in a `tf.Graph` of its own, whose values a session
reaches. Whoever reads or writes variables of a store does it here, and need not know which it is.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute.graph_values import eagerly, fill_later, session_of

# A session's call carries so much: it is one message, and a message has a limit of 2 GiB.
CALL_BYTES = 256 << 20


def to_numpy(variable: Any) -> np.ndarray:
    """Return a variable's value as an array, with its own dtype."""
    raw = raw_variable(variable)
    session = session_of(raw)
    if session is not None:
        return session.read([raw])[0]
    return np.asarray(eagerly(raw.numpy))


def read_each(variables: Iterable[Any]) -> Iterator[np.ndarray]:
    """Yield the values of variables, in order; a session is called once for many of them."""
    for group in _groups((variable, None) for variable in variables):
        raws = [raw for raw, _ in group]
        session = session_of(raws[0])
        if session is not None:
            yield from session.read(raws)
        else:
            yield from (to_numpy(raw) for raw in raws)


def read_rows(variable: Any, first: int, end: int) -> np.ndarray:
    """Return rows `[first, end)` of a variable; nothing else is read or sent."""
    return call(variable, "read_rows", rows_of, first, end)


def rows_of(raw: Any, first: Any, end: Any) -> tf.Tensor:
    """Return rows `[first, end)` of TensorFlow's variable, gathered where it lives."""
    with tf.device(raw.device):
        return tf.gather(raw, tf.range(first, end))


def call(variable: Any, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of tensors returns, as an array: run now, or in a variable's session.

    Args:
        variable: Decides where.
        name: Of the function, which in a session is built once for a variable.
        function: Takes TensorFlow's variable, which in a session is a stand-in for it, and the
            arguments as tensors; returns a tensor or an operation.
        *arguments: Integers, texts, bytes or arrays, always of the same dtypes and ranks.
    """
    raw = raw_variable(variable)
    session = session_of(raw)
    if session is not None:
        return session.call(raw, name, function, *arguments)
    found = function(raw, *(tf.constant(argument) for argument in arguments))
    return None if found is None else found.numpy()


def run_all(variables: Sequence[Any], name: str, function: Callable[[Any], Any]) -> None:
    """Run a function's operation for each of some variables of one session, in one call."""
    if variables:
        session = session_of(raw_variable(variables[0]))
        assert session is not None
        session.run_all(variables, name, function)


def is_in_session(variable: Any) -> bool:
    """Return whether a session reaches this variable."""
    return session_of(raw_variable(variable)) is not None


def write(variable: Any, value: Any) -> None:
    """Give a variable a value of its own shape."""
    write_each([(variable, value)])


def write_each(pairs: Iterable[tuple[Any, Any]]) -> int:
    """Give variables values of their own shapes; return how many they were.

    A session is called once for many of them.

    Args:
        pairs: Variables, each with its value; taken one at a time.
    """
    num = 0
    for group in _groups(pairs):
        num += len(group)
        session = session_of(group[0][0])
        if session is not None:
            session.write(group)
        else:
            for raw, value in group:
                raw.assign(value)
    return num


def rows_writer(variable: Any) -> Callable[[np.ndarray, np.ndarray], None]:
    """Return what writes rows of a variable: it is given their places, and the rows."""
    raw = raw_variable(variable)

    def update(target: Any, places: Any, rows: Any) -> Any:
        with (
            tf.device(target.device),
            tf.control_dependencies([target.scatter_nd_update(places, rows)]),
        ):
            return tf.constant(0)

    function = update
    if not is_in_session(raw):  # Only a graph knows the shape of a variable that is elsewhere.
        spec = tf.TensorSpec([None, *raw.shape[1:]], raw.dtype)
        signature = (tf.TensorSpec([None, 1], tf.int64), spec)
        traced = tf.function(functools.partial(update, raw), signature, autograph=False)

        def function(target: Any, places: Any, rows: Any) -> Any:
            del target
            return traced(places, rows)

    return lambda places, rows: call(raw, "write_rows", function, places[:, None], rows)


def first_value(make: Callable[[], Any], shape: Any, dtype: Any) -> Any:
    """Return what to create a variable of a store with: `make()`, an array or a tensor.

    In a graph it is zeros instead: a graph should not carry a model's weights. There the chief
    writes the values once its session runs.
    """
    return make() if tf.executing_eagerly() else tf.zeros(shape, dtype)


def fill(variable: Any, operation: Callable[[Any], Any]) -> None:
    """Run operations that give a new variable its first value where it lives.

    They run now; in a graph, when the chief's session initializes the graph's variables.

    Args:
        variable: The variable.
        operation: Takes TensorFlow's variable, or a stand-in for it.
    """
    if tf.executing_eagerly():
        operation(raw_variable(variable))
    else:
        fill_later(raw_variable(variable), operation)


def run(variable: Any, operation: Callable[[], Any]) -> None:
    """Run TensorFlow operations on variables: now, or in the session of the variables' graph.

    Args:
        variable: One of the variables.
        operation: Calls the operations; its result is dropped.
    """
    session = session_of(raw_variable(variable))
    if session is None:
        operation()
    else:
        session.run(operation)


def raw_variable(variable: Any) -> Any:
    """Return TensorFlow's variable behind one of Keras'."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _groups(pairs: Iterable[tuple[Any, Any]]) -> Iterator[list[tuple[Any, Any]]]:
    """Yield pairs of variables and values: one by one, or as many as a session's call carries."""
    group: list[tuple[Any, Any]] = []
    num_bytes, of_group = 0, None
    for variable, value in pairs:
        raw = raw_variable(variable)
        session = session_of(raw)
        size = 0 if session is None else raw.dtype.size * (raw.shape.num_elements() or 0)
        if group and (session is None or session is not of_group or num_bytes + size > CALL_BYTES):
            yield group
            group, num_bytes = [], 0
        group.append((raw, value))
        num_bytes, of_group = num_bytes + size, session
    if group:
        yield group
