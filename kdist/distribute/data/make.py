"""Choose the source for a part by the form that it came in."""

from typing import Any

from kdist.distribute.data.array_source import array_source
from kdist.distribute.data.source import BatchSource, DataSettings


def make_source(
    part: Any, *, settings: DataSettings, class_weight: Any = None, key: str = "data"
) -> BatchSource:
    """Return the source of global batches for one part of the data.

    Args:
        part: Arrays `(x, y)` or `(x, y, sample_weight)`.
        settings: How to batch, shuffle and hold it.
        class_weight: Class index to weight, or `None`; multiplies given sample weights.
        key: What to call the part in messages, such as `data.train`.

    Raises:
        ConfigError: If the part cannot be trained on; the message names it.
    """
    return array_source(part, settings=settings, class_weight=class_weight, key=key)
