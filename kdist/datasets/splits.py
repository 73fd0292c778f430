"""Hold rows out for validation, the same ones in every task."""

import math
from typing import Any

import numpy as np

from kdist.errors import ConfigError


def held_out(
    part: tuple[Any, ...], validation_fraction: float, split_seed: int
) -> dict[str, tuple[Any, ...]]:
    """Return `{"train": ..., "validation": ...}`; without validation for a fraction of 0.

    Args:
        part: `(x, y)` or `(x, y, sample_weight)`: arrays with a row for each example, or dicts of
            them.
        validation_fraction: Part of the rows to hold out, rounded up.
        split_seed: Which rows are held out.

    Raises:
        ConfigError: If the fraction is not in [0, 1), or leaves no row to train on.
    """
    if not 0 <= validation_fraction < 1:
        raise ConfigError(
            "data.validation_fraction must be at least 0 and below 1. "
            f"Received: {validation_fraction}."
        )
    if validation_fraction == 0:
        return {"train": part}
    num_rows = len(_first_array(part))
    num_held_out = math.ceil(num_rows * validation_fraction)
    if num_held_out >= num_rows:
        raise ConfigError(
            "Holding rows out must leave some to train on. Received: "
            f"{num_rows} rows, data.validation_fraction={validation_fraction}. "
            "Use a smaller fraction, or more data."
        )
    rows = np.random.default_rng(split_seed).permutation(num_rows)
    return {
        "train": tuple(_taken(field, rows[num_held_out:]) for field in part),
        "validation": tuple(_taken(field, rows[:num_held_out]) for field in part),
    }


def _taken(field: Any, rows: np.ndarray) -> Any:
    if isinstance(field, dict):
        return {name: array[rows] for name, array in field.items()}
    return field[rows]


def _first_array(part: tuple[Any, ...]) -> np.ndarray:
    return next(iter(part[0].values())) if isinstance(part[0], dict) else part[0]
