"""Made-up classification data of any size, for trying shapes and measuring speed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdist.datasets.splits import held_out
from kdist.errors import ConfigError


def synthetic(
    num_examples: int = 4096,
    num_features: int = 64,
    num_classes: int = 10,
    shape: Sequence[int] | None = None,
    noise: float = 1.0,
    validation_fraction: float = 0.2,
    generator_seed: int = 0,
) -> dict[str, Any]:
    """Return points around one random centre for each class; float32 inputs, int64 labels.

    Args:
        num_examples: Rows of all parts together.
        num_features: Size of one input.
        num_classes: Number of centres.
        shape: Shape of one input, in place of `num_features`.
        noise: Standard deviation around a centre; centres have one of 1.
        validation_fraction: Part of the rows that is held out.
        generator_seed: What the data depend on; the same in every task.

    Raises:
        ConfigError: If a size is not positive.
    """
    shape = (num_features,) if shape is None else tuple(shape)
    sizes = {"num_examples": num_examples, "num_features": num_features}
    sizes |= {"num_classes": num_classes, "shape": min(shape, default=1)}
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"data.{name} must be positive. Received: {size}.")
    random = np.random.default_rng(generator_seed)
    centres = random.standard_normal((num_classes, *shape), dtype=np.float32)
    y = random.integers(0, num_classes, num_examples)
    x = random.standard_normal((num_examples, *shape), dtype=np.float32) * np.float32(noise)
    x += centres[y]
    return held_out((x, y), validation_fraction, generator_seed)
