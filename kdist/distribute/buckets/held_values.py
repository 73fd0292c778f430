"""Values as they were at one step, fetched or written to files while steps go on.

Whoever has a variable holds its value: this process, a server, or a server behind a session. There
it shares the variable's memory until a step writes the variable, which moves on to new memory. Of
a variable that is written in part, as tables are, it is a copy from the beginning.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.values import (
    call,
    is_in_session,
    raw_variable,
    rows_of,
    run_all,
    to_numpy,
)

# Under this name a file of `Held.save` has its rows.
ROWS = "rows"
_AT_ONCE = 8
# After these a server is gone, or its answer; whatever else an operation ends with is an answer.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)


@dataclass(frozen=True, eq=False)
class Held:
    """A variable's value; any thread may ask for it, or for a part of it.

    Attributes:
        variable: TensorFlow's.
        value: An array, or a tensor where the variable lives; `None` if it is read when it is
            asked for, or staged behind a session.
        is_staged: Whether it is staged.
    """

    variable: Any
    value: Any = None
    is_staged: bool = False

    @property
    def is_live(self) -> bool:
        """Return whether it is whatever the variable is when it is asked for."""
        return self.value is None and not self.is_staged

    @property
    def device(self) -> str:
        """Return where the variable lives."""
        return self.variable.device

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the value."""
        del copy
        if self.value is not None:
            return np.asarray(self.value, dtype)
        found = call(self.variable, "staged", _peek) if self.is_staged else to_numpy(self.variable)
        return np.asarray(found, dtype)

    def rows(self, first: int, end: int) -> np.ndarray:
        """Return rows `[first, end)`; nothing else is sent."""
        return call(self.variable, self._name("rows"), self._rows, first, end)

    def save(self, path: str, first: int, end: int) -> None:
        """Let whoever holds it write rows `[first, end)` to a file, as the tensor `ROWS` in it.

        The file is a checkpoint of TensorFlow's: `<path>.index` and `<path>.data-00000-of-00001`.

        Raises:
            OSError: If it cannot be written.
            tf.errors.OpError: If the server was lost.
        """
        try:
            call(self.variable, self._name("save"), self._saved, path, first, end)
        except _LOST:
            raise
        except tf.errors.OpError as error:
            raise OSError(error.message.partition("\n")[0]) from error

    def _name(self, what: str) -> str:
        return f"{what} staged" if self.is_staged else what

    def _rows(self, variable: Any, first: Any, end: Any) -> Any:
        with tf.device(variable.device):
            if self.is_live:
                return rows_of(variable, first, end)
            return (_peek(variable) if self.is_staged else self.value)[first:end]

    def _saved(self, variable: Any, path: Any, first: Any, end: Any) -> Any:
        rows = self._rows(variable, first, end)
        with tf.device(variable.device):
            return tf.raw_ops.SaveV2(
                prefix=path, tensor_names=[ROWS], shape_and_slices=[""], tensors=[rows]
            )


def hold(variables: Sequence[Any]) -> list[Held]:
    """Return the values of variables at this moment; no step may run meanwhile.

    Call `release` when they are not needed any more.
    """
    raws = [raw_variable(variable) for variable in variables]
    staged = [raw for raw in raws if is_in_session(raw)]
    run_all(staged, "stage", _stage)
    ids = {id(raw) for raw in staged}
    elsewhere = [raw for raw in raws if id(raw) not in ids and _is_remote(raw)]
    with ThreadPoolExecutor(_AT_ONCE) as threads:  # Each waits for an answer.
        known = dict(zip(map(id, elsewhere), threads.map(_value, elsewhere), strict=True))
    return [
        Held(raw, is_staged=True)
        if id(raw) in ids
        else Held(raw, known[id(raw)] if id(raw) in known else _value(raw))
        for raw in raws
    ]


def release(held: Sequence[Held]) -> None:
    """Let go of values that are staged behind a session."""
    run_all([each.variable for each in held if each.is_staged], "release", _clear)


def is_elsewhere(variable: Any) -> bool:
    """Return whether another task has a variable, or a session is between."""
    raw = raw_variable(variable)
    return is_in_session(raw) or _is_remote(raw)


def can_read(variable: Any, path: str, content: bytes) -> bool:
    """Return whether whoever has a variable finds this content in a file."""
    return _answer(variable, "read_file", _read_file, path) == content


def can_write(variable: Any, path: str, content: bytes) -> bool:
    """Return whether whoever has a variable says that it has written a file."""
    return bool(_answer(variable, "write_file", _write_file, path, content))


def _read_file(variable: Any, path: Any) -> Any:
    with tf.device(variable.device):
        return tf.io.read_file(path)


def _write_file(variable: Any, path: Any, content: Any) -> Any:
    with tf.device(variable.device), tf.control_dependencies([tf.io.write_file(path, content)]):
        return tf.constant(True)


def _answer(variable: Any, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(variable, name, function, *arguments)
    except _LOST:
        raise
    except tf.errors.OpError:
        return None


def _is_remote(raw: Any) -> bool:
    """Return whether another task has a variable."""
    jobs = [tf.DeviceSpec.from_string(each.device).job for each in (raw, tf.constant(0))]
    return jobs[0] != jobs[1]


def _value(raw: Any) -> Any:
    """Return a tensor that shares memory, or an array: an accelerator has no memory to spare."""
    if tf.executing_eagerly() and not tf.is_symbolic_tensor(getattr(raw, "handle", None)):
        tensor = tf.convert_to_tensor(raw)
        if tf.DeviceSpec.from_string(tensor.device).device_type == "CPU":
            return tensor
    return to_numpy(raw)


# In a session's graph: a server keeps a tensor in a staging area that belongs to the variable.


def _stage(raw: Any) -> Any:
    with tf.device(raw.device):
        with tf.control_dependencies([_clear(raw)]):
            value = raw.read_value()
        return tf.raw_ops.Stage(values=[value], **_area(raw))


def _peek(raw: Any) -> Any:
    with tf.device(raw.device):
        found = tf.raw_ops.StagePeek(index=0, dtypes=[raw.dtype], **_area(raw))
    return tf.ensure_shape(found[0], raw.shape)


def _clear(raw: Any) -> Any:
    with tf.device(raw.device):
        return tf.raw_ops.StageClear(dtypes=[raw.dtype], **_area(raw))


def _area(raw: Any) -> dict[str, str]:
    name = raw.handle.op.get_attr("shared_name").decode()
    container = raw.handle.op.get_attr("container").decode()
    return {"container": container, "shared_name": f"{name}_held"}
