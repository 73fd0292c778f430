"""Arrays from an .npz file.

Names in the file: `x`, `y` and `sample_weight` for training, the same with `_validation` and
`_test` for the other parts. Several inputs or outputs are written as `x.NAME` and `y.NAME` (with
`x_validation.NAME` and so on) and come out as dicts. Only `x` must be there.
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from kdist.datasets.splits import held_out
from kdist.errors import ConfigError, EnvironmentFault

_PARTS = {"train": "", "validation": "_validation", "test": "_test"}
_FIELDS = ("x", "y", "sample_weight")


def npz(path: str, validation_fraction: float = 0.0, split_seed: int = 0) -> dict[str, Any]:
    """Return the parts that a file holds; see the module for the names of its arrays.

    Args:
        path: The file, absolute or from the current directory.
        validation_fraction: Part of the rows to hold out if the file has labels, but no
            validation arrays.
        split_seed: Which rows are held out.

    Raises:
        EnvironmentFault: If the file is missing or cannot be opened.
        ConfigError: If it is no .npz file, or its arrays cannot be used; names the array.
    """
    arrays = read_npz(path)
    parts = {part: _part(arrays, suffix, path) for part, suffix in _PARTS.items()}
    found: dict[str, Any] = {name: part for name, part in parts.items() if part is not None}
    if arrays:
        raise ConfigError(
            f"Unknown arrays in data.path={path}. Received: {', '.join(sorted(arrays))}. Names "
            "are x, y, sample_weight, each also with _validation or _test, and .NAME for several "
            "inputs or outputs."
        )
    if "train" not in found:
        raise ConfigError(
            f"data.path={path} has no array x. Received: {', '.join(found) or 'no'} arrays. "
            "Write it with numpy.savez(path, x=..., y=...)."
        )
    has_labels = len(found["train"]) > 1 and found["train"][1] is not None
    if "validation" not in found and has_labels:
        found.update(held_out(found["train"], validation_fraction, split_seed))
    return found


def read_npz(path: str) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name; nothing in it is executed.

    Raises:
        EnvironmentFault: If the file is missing or cannot be opened.
        ConfigError: If it is no .npz file, holds pickled objects, or is cut off.
    """
    if not Path(path).is_file():
        raise EnvironmentFault(
            f"The data file does not exist. Received: data.path={path}, looked for at "
            f"{Path(path).absolute()}."
        )
    name = None
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ConfigError(
                f"data.path must be an .npz file. Received: {path}, a single array of shape "
                f"{loaded.shape}. Write it with numpy.savez(path, x=..., y=...)."
            )
        arrays = {}
        with loaded:
            for name in loaded.files:
                arrays[name] = loaded[name]
    except ConfigError:
        raise
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        what = f"array {name} of data.path={path}" if name else f"data.path={path}"
        raise ConfigError(
            f"Cannot read {what}. Received: {type(error).__name__}: {error}. Expected numeric "
            "arrays written with numpy.savez(path, x=..., y=...)."
        ) from error
    except OSError as error:
        raise EnvironmentFault(f"Cannot open data.path={path}. Received: {error}.") from error
    if not arrays:
        raise ConfigError(f"data.path={path} holds no arrays. Write x and y with numpy.savez.")
    return arrays


def _part(arrays: dict[str, np.ndarray], suffix: str, path: str) -> tuple[Any, ...] | None:
    """Take one part's arrays out of `arrays`; return `None` if there are none."""
    fields = [_field(arrays, f"{field}{suffix}", path) for field in _FIELDS]
    if all(field is None for field in fields):
        return None
    if fields[0] is None:
        raise ConfigError(
            f"data.path={path} has y{suffix} or sample_weight{suffix}, but no x{suffix}."
        )
    shapes = [a.shape for f in fields if f is not None for a in _leaves(f)]
    if len({shape[:1] for shape in shapes}) > 1 or () in shapes or (0,) in {s[:1] for s in shapes}:
        raise ConfigError(
            f"x{suffix}, y{suffix} and sample_weight{suffix} of data.path={path} need the same "
            f"number of rows, at least one. Received: shapes {', '.join(map(str, shapes))}."
        )
    while fields[-1] is None:
        fields.pop()
    return tuple(fields)


def _field(arrays: dict[str, np.ndarray], name: str, path: str) -> Any:
    named = {key: arrays.pop(key) for key in [*arrays] if key.startswith(f"{name}.")}
    if name in arrays and named:
        raise ConfigError(
            f"data.path={path} has both {name} and {', '.join(named)}. Keep one form."
        )
    if named:
        return {key.removeprefix(f"{name}."): array for key, array in named.items()}
    return arrays.pop(name, None)


def _leaves(field: Any) -> list[np.ndarray]:
    return list(field.values()) if isinstance(field, dict) else [field]
