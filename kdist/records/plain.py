"""Plain JSON out of what training hands over: numpy scalars, paths, NaN."""

import math
from collections.abc import Mapping
from typing import Any


def to_plain(value: Any, path: str = "") -> tuple[Any, list[str]]:
    """Return a copy of `value` that JSON can hold, and the paths of numbers it could not hold.

    NaN and infinities become `None`; numpy scalars and arrays become numbers and lists; keys
    and everything else unknown become text.

    Returns:
        The plain value, and one `"path is nan"` entry for each number that became `None`.
    """
    if value is None or isinstance(value, bool | int | str):
        return (str(value) if isinstance(value, str) else value), []
    if isinstance(value, float):
        return (value, []) if math.isfinite(value) else (None, [f"{path or 'value'} is {value}"])
    if isinstance(value, Mapping):
        pairs = {str(key): to_plain(item, _join(path, key)) for key, item in value.items()}
        return {key: pair[0] for key, pair in pairs.items()}, _notes(pairs.values())
    if isinstance(value, list | tuple | set | frozenset):
        items = [to_plain(item, _join(path, index)) for index, item in enumerate(value)]
        return [item for item, _ in items], _notes(items)
    for method in ("tolist", "numpy"):  # numpy's values and TensorFlow's, neither imported
        if callable(convert := getattr(value, method, None)):
            return to_plain(convert(), path)
    return str(value), []


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _notes(pairs: Any) -> list[str]:
    return [note for _, notes in pairs for note in notes]
