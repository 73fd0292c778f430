"""Hold rows out for validation, the same ones in every task."""

import math
from typing import Any

import numpy as np

from kdist.errors import ConfigError


def held_out(
    x: np.ndarray, y: np.ndarray, validation_fraction: float, split_seed: int
) -> dict[str, Any]:
    """Return `{"train": (x, y), "validation": (x, y)}`; without validation for a fraction of 0.

    Args:
        x: Inputs, a row each.
        y: Labels, a row each.
        validation_fraction: Part of the rows to hold out, at least one row of each part.
        split_seed: Which rows are held out.

    Raises:
        ConfigError: If the fraction is not in [0, 1).
    """
    if not 0 <= validation_fraction < 1:
        raise ConfigError(
            "data.validation_fraction must be at least 0 and below 1. "
            f"Received: {validation_fraction}."
        )
    if validation_fraction == 0:
        return {"train": (x, y)}
    if len(x) < 2:
        raise ConfigError(
            f"Two rows are needed to hold one out. Received: {len(x)} rows, "
            f"data.validation_fraction={validation_fraction}."
        )
    rows = np.random.default_rng(split_seed).permutation(len(x))
    num_held_out = min(math.ceil(len(x) * validation_fraction), len(x) - 1)
    held, kept = rows[:num_held_out], rows[num_held_out:]
    return {"train": (x[kept], y[kept]), "validation": (x[held], y[held])}
