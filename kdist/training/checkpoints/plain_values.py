"""Plain Python values as JSON beside arrays: what a checkpoint can hold of a callback.

Numbers, texts, lists, tuples, sets, mappings and arrays of numbers, nested as they like. Nothing
that would have to run code to come back.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_KIND = "kind"
_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}
_MAPPINGS = ("dict", "defaultdict", "OrderedDict")


class NotPlainError(TypeError):
    """A value is nothing that a checkpoint can hold."""


def encode(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return what JSON can hold of a value; arrays are put under names that begin with `name`.

    Raises:
        NotPlainError: If it is something else than plain values.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biufcV" or value.dtype.hasobject:
            raise NotPlainError(f"an array of {value.dtype}")
        arrays[name] = np.asarray(value)
        return {_KIND: "array", "name": name, "is_scalar": isinstance(value, np.generic)}
    if type(value) is list:
        return [encode(item, f"{name}/{i}", arrays) for i, item in enumerate(value)]
    if type(value) in (tuple, set, frozenset):
        items = [encode(item, f"{name}/{i}", arrays) for i, item in enumerate(value)]
        return {_KIND: type(value).__name__, "items": items}
    if isinstance(value, Mapping) and type(value).__name__ in (
        "dict",
        "defaultdict",
        "OrderedDict",
    ):
        pairs = [
            [encode(k, f"{name}/{i}k", arrays), encode(v, f"{name}/{i}", arrays)]
            for i, (k, v) in enumerate(value.items())
        ]
        return {_KIND: "mapping", "items": pairs}
    raise NotPlainError(type(value).__name__)


def decode(content: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the value that `encode` was given."""
    if isinstance(content, list):
        return [decode(item, arrays) for item in content]
    if not isinstance(content, Mapping):
        return content
    if content[_KIND] == "array":
        array = arrays[content["name"]]
        return array[()] if content["is_scalar"] else np.array(array)
    if content[_KIND] == "mapping":
        return {decode(k, arrays): decode(v, arrays) for k, v in content["items"]}
    return _SEQUENCES[content[_KIND]](decode(item, arrays) for item in content["items"])


def fingerprint(content: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return something that is equal for equal values, and small."""
    checksums = {
        name: (zlib.crc32(np.ascontiguousarray(array).tobytes()), array.dtype, array.shape)
        for name, array in arrays.items()
    }
    return repr(content), checksums
