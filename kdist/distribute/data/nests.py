"""Turn what a data function returned into nests of plain arrays, or refuse it by name.

A nest is an array, or a dict or tuple of nests. `()` stands for "none", as TensorFlow's datasets
have no `None`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.errors import ConfigError

PART_FORMS = (
    "arrays (x,), (x, y) or (x, y, sample_weight), an unbatched tf.data.Dataset, a "
    "keras.utils.PyDataset, or a function of tf.distribute.InputContext that returns a batched "
    "tf.data.Dataset"
)


def split_part(part: Any, key: str) -> tuple[Any, Any, Any]:
    """Return `(x, y, sample_weight)` of `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    What is missing, or `None`, comes back as `()`.

    Raises:
        ConfigError: If `part` has another form.
    """
    if not isinstance(part, tuple | list) or not 1 <= len(part) <= 3:
        size = f" of {len(part)} items" if isinstance(part, tuple | list) else ""
        raise ConfigError(f"{key} must be {PART_FORMS}. Received: {type(part).__name__}{size}.")
    x, y, sample_weight = (*part, None, None)[:3]
    if x is None:
        raise ConfigError(f"{key} has no inputs: x is None. Return {PART_FORMS}.")
    return x, () if y is None else y, () if sample_weight is None else sample_weight


def holds_arrays(value: tuple | list) -> bool:
    """Return whether a list or tuple is a nest of arrays; a list of numbers is an array."""
    return all(map(_is_nest_item, value))


def map_named(
    convert: Callable[[Any, str], Any],
    value: Any,
    name: str,
    is_nest: Callable[[tuple | list], bool] = holds_arrays,
) -> Any:
    """Apply `convert(leaf, name)` to every leaf; nested lists become tuples, as in Keras.

    Args:
        convert: What to apply.
        value: A nest.
        name: What to call it in messages; leaves get it with their keys.
        is_nest: Whether a list or tuple is a nest, and no leaf.
    """
    if isinstance(value, Mapping):
        return {k: map_named(convert, value[k], f"{name}[{k!r}]", is_nest) for k in value}
    if isinstance(value, tuple | list) and is_nest(value):
        return tuple(
            map_named(convert, item, f"{name}[{i}]", is_nest) for i, item in enumerate(value)
        )
    return convert(value, name)


def named_leaves(value: Any, name: str) -> list[tuple[str, Any]]:
    """Return `(name, leaf)` for every leaf of a nest of arrays or specs, in order."""
    found: list[tuple[str, Any]] = []
    collect = lambda leaf, leaf_name: found.append((leaf_name, leaf))  # noqa: E731
    map_named(collect, value, name, is_nest=is_always_nest)
    return found


def is_always_nest(_: tuple | list) -> bool:
    """Return `True`: in TensorFlow's structures every tuple is a nest."""
    return True


def as_array(value: Any, name: str, *, strings: bool = True) -> np.ndarray:
    """Return `value` as an array whose first axis counts rows; no copy where none is needed.

    Floats become `keras.config.floatx()`, as in Keras; integers and booleans stay as they are.

    Raises:
        ConfigError: If it is ragged, sparse, made of objects, or has no rows.
    """
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor) or _is_scipy_sparse(value):
        raise ConfigError(
            f"{name} must be a dense array. Received: {type(value).__name__}. Pad or densify it."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ConfigError(
            f"{name} has rows of different shapes. Received: {_brief(value)}. "
            "Pad them to one shape."
        ) from error
    return as_plain_dtype(_without_objects(array, name), name, strings=strings)


def as_plain_dtype(array: np.ndarray, name: str, *, strings: bool = True) -> np.ndarray:
    """Return an array of a type that TensorFlow has, in this machine's byte order."""
    floatx = keras.config.floatx()
    if array.dtype.name.startswith(("float", "bfloat")):
        array = array if array.dtype.name == floatx else array.astype(floatx)
    elif array.dtype.kind not in ("biucUSO" if strings else "biuc"):
        raise ConfigError(
            f"{name} must hold numbers. Received: an array of {array.dtype}. "
            "Encode it as integers or floats."
        )
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.ndim == 0:
        raise ConfigError(f"{name} must have rows along its first axis. Received: {array!r}.")
    return array


def _without_objects(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype.kind != "O":
        return array
    if array.size and all(isinstance(item, str) for item in array.flat):
        return array.astype(str)
    if array.size and all(isinstance(item, bytes) for item in array.flat):
        return array  # not astype(bytes): numpy would drop trailing zero bytes
    kinds = sorted({type(item).__name__ for item in array.flat})
    raise ConfigError(
        f"{name} must hold numbers of one type and rows of one shape. Received: an object array "
        f"of {', '.join(kinds) or 'nothing'}. Pad ragged rows; convert mixed columns to floats."
    )


def _is_nest_item(item: Any) -> bool:
    if isinstance(item, tuple | list):
        return bool(item) and all(map(_is_nest_item, item))
    return isinstance(item, Mapping) or (hasattr(item, "__array__") and np.ndim(item) > 0)


def _is_scipy_sparse(value: Any) -> bool:
    return type(value).__module__.startswith("scipy.sparse")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
