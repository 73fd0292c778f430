"""The default data: 1,797 handwritten digits that scikit-learn ships."""

from typing import Any

import numpy as np

from kdist.datasets.splits import held_out


def digits(validation_fraction: float = 0.2, split_seed: int = 0) -> dict[str, Any]:
    """Return images `(n, 8, 8, 1)`, float32 in [0, 1], and labels 0 to 9, int64.

    Args:
        validation_fraction: Part of the rows that is held out.
        split_seed: Which rows are held out; the split is the same in every task.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = (np.asarray(images) / 16.0).reshape(-1, 8, 8, 1).astype(np.float32)
    return held_out((x, np.asarray(labels, np.int64)), validation_fraction, split_seed)
