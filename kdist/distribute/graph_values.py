"""The values of variables in a graph, through its session: calls of few messages."""

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

_sessions: "weakref.WeakKeyDictionary[Any, GraphValues]" = weakref.WeakKeyDictionary()
_fillings: "weakref.WeakKeyDictionary[Any, list[tuple[Any, Any]]]" = weakref.WeakKeyDictionary()


class NewSession(Protocol):
    """Makes a session."""

    def __call__(self, graph: tf.Graph, *, is_optimized: bool) -> tf.compat.v1.Session:
        """Return a session on a graph, and whether what it runs is optimized.

        Calls of functions on other tasks need that; small graphs without are quicker.
        """
        ...


class StandIns:
    """Variables of a small graph that mean those of another: by name, container and device."""

    def __init__(self) -> None:
        """Begin with an empty graph."""
        self.graph = tf.Graph()
        self._known: dict[int, Any] = {}

    def of(self, variable: Any) -> Any:
        """Return what stands for TensorFlow's variable of another graph; one thread at a time."""
        if id(variable) not in self._known:
            operation = variable.handle.op
            name, container = (
                operation.get_attr(each).decode() for each in ("shared_name", "container")
            )
            sizes = [] if variable.shape.rank is None else variable.shape
            with (
                self.graph.as_default(),
                tf.device(variable.device),
                self.graph.container(container),
            ):
                found = tf.Variable(
                    tf.zeros([size or 0 for size in sizes], variable.dtype),  # Never assigned.
                    shape=variable.shape,
                    name=name,
                )
            assert found.handle.op.get_attr("shared_name").decode() == name
            self._known[id(variable)] = found
        return self._known[id(variable)]


class GraphValues:
    """The values of a graph's variables, through a session.

    Servers look at all of a graph again, the steps in it included, for each thing that is added to
    it and for each new thing that is run. So values are read and written in another, small graph.
    """

    def __init__(self, session: tf.compat.v1.Session, new_session: NewSession):
        """Let `values` reach the variables of the session's graph.

        Args:
            session: Runs the steps.
            new_session: Makes another one with the same servers, on another graph.
        """
        self._steps = session
        self._new_session = new_session
        self._stand_ins = StandIns()
        self._session = new_session(self._stand_ins.graph, is_optimized=False)
        self._lock = threading.Lock()  # Of what is built: any thread may read.
        self._calls: dict[Hashable, tuple[list[Any], Any]] = {}
        _sessions[session.graph] = self

    def close(self) -> None:
        """Close the session of values."""
        self._session.close()

    def fill_all(self) -> None:
        """Run what `fill` was given for the graph's variables."""
        stand_ins = StandIns()
        with self._new_session(stand_ins.graph, is_optimized=True) as session:
            for variable, operation in _fillings.pop(self._steps.graph, []):
                _run(session, functools.partial(operation, stand_ins.of(variable)))

    def read(self, variables: Sequence[tf.Variable]) -> list[np.ndarray]:
        """Return variables' values, in one call."""
        with self._lock:
            wanted = [self._stand_ins.of(variable) for variable in variables]
        return [np.asarray(value) for value in self._session.run(wanted)]

    def call(
        self, variable: tf.Variable, name: str, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Return what a function returns that is built when it is new; see `values.call`."""
        fed = _fed(arguments)
        given, found = self._built(variable, name, function, *fed)
        return self._session.run(found, dict(zip(given, fed, strict=True)))

    def run_all(
        self, variables: Sequence[tf.Variable], name: str, function: Callable[[Any], Any]
    ) -> None:
        """Run a function's operation for each variable, in one call."""
        self._session.run([self._built(variable, name, function)[1] for variable in variables])

    def write(self, pairs: Sequence[tuple[tf.Variable, Any]]) -> None:
        """Set variables, in one call."""
        feeds, assigned = {}, []
        for variable, value in pairs:
            fed = np.asarray(value, variable.dtype.as_numpy_dtype)  # Texts are objects.
            [given], operation = self._built(variable, "write", _assigned, fed)
            feeds[given] = fed
            assigned.append(operation)
        self._session.run(assigned, feeds)

    def run(self, operation: Callable[[], Any]) -> None:
        """Run operations on any of the graph's variables; they are added to the graph itself."""
        _run(self._steps, operation)

    def _built(
        self, variable: tf.Variable, name: str, function: Callable[..., Any], *arguments: Any
    ) -> tuple[list[Any], Any]:
        key = name, id(variable)
        with self._lock, self._stand_ins.graph.as_default():
            if key not in self._calls:
                given = [
                    tf.compat.v1.placeholder(a.dtype, [None] * a.ndim) for a in _fed(arguments)
                ]
                self._calls[key] = given, function(self._stand_ins.of(variable), *given)
            return self._calls[key]


def _fed(arguments: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(a, object if isinstance(a, str | bytes) else None) for a in arguments]


def _run(session: tf.compat.v1.Session, operation: Callable[[], Any]) -> None:
    """Add operations to a session's graph, and run them in their order."""

    def ordered() -> tf.Tensor:
        operation()
        return tf.constant(0)

    traced = eagerly(tf.function(ordered, autograph=False).get_concrete_function)
    with session.graph.as_default():
        session.run(traced())


def _assigned(variable: Any, value: Any) -> Any:
    with tf.device(variable.device):
        return variable.assign(tf.ensure_shape(value, variable.shape), read_value=False)


def session_of(raw: Any) -> GraphValues | None:
    """Return what reaches TensorFlow's variable in its graph; `None` for one of this process."""
    if not _sessions:
        return None
    try:
        handle = raw.handle
    except (AttributeError, ValueError):  # A distributed variable, outside a replica.
        return None
    return _sessions.get(handle.graph) if tf.is_symbolic_tensor(handle) else None


def fill_later(variable: Any, operation: Callable[[Any], Any]) -> None:
    """Remember a function of a variable that `GraphValues.fill_all` will run."""
    _fillings.setdefault(variable.graph, []).append((variable, operation))


def eagerly(function: Callable[[], Any]) -> Any:
    """Return `function()`, run eagerly, also while a graph is being built.

    Whether TensorFlow runs operations or records them is a property of the thread, so another
    thread does it.
    """
    if tf.executing_eagerly():
        return function()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()
