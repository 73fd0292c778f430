"""Choose the source for a part by the form that it came in."""

from typing import Any

import keras
import tensorflow as tf

from kdist.distribute.data.array_source import array_source
from kdist.distribute.data.class_weights import check_class_weight
from kdist.distribute.data.elements import (
    element_specs,
    refuse_batched,
    standard_elements,
)
from kdist.distribute.data.materialize import materialize
from kdist.distribute.data.nests import PART_FORMS
from kdist.distribute.data.per_worker_source import per_worker_source
from kdist.distribute.data.py_dataset_source import py_dataset_source
from kdist.distribute.data.source import BatchSource, DataSettings
from kdist.distribute.data.stream_source import stream_source
from kdist.errors import ConfigError


def make_source(
    part: Any, *, settings: DataSettings, class_weight: Any = None, key: str = "data"
) -> BatchSource:
    """Return the source of global batches for one part of the data.

    A finite tf.data.Dataset that fits `settings.cache_bytes` is read once, here, and held as
    arrays. Every task must be given the same rows in the same order: seed what makes them.

    Args:
        part: Arrays `(x, y)` or `(x, y, sample_weight)`, where x and y may be dicts or tuples; an
            unbatched tf.data.Dataset; a keras.utils.PyDataset; or a function of
            tf.distribute.InputContext that returns a batched dataset.
        settings: How to batch, shuffle and hold it.
        class_weight: Class index to weight, or `None`; multiplies given sample weights.
        key: What to call the part in messages, such as `data.train`.

    Raises:
        ConfigError: If the part cannot be used; the message names it.
    """
    common: dict[str, Any] = {"settings": settings, "class_weight": class_weight, "key": key}
    if isinstance(part, tf.data.Dataset):
        return _dataset_source(part, **common)
    if isinstance(part, keras.utils.PyDataset):
        return py_dataset_source(part, **common)
    if isinstance(part, tuple | list):
        return array_source(part, **common)
    if callable(part) and not isinstance(part, type):
        make_dataset: Any = part
        return per_worker_source(make_dataset, **common)
    raise ConfigError(f"{key} must be {PART_FORMS}. Received: {type(part).__name__}.")


def _dataset_source(
    dataset: tf.data.Dataset, *, settings: DataSettings, class_weight: Any, key: str
) -> BatchSource:
    specs = element_specs(dataset, key)
    refuse_batched(specs, key)
    if class_weight is not None:
        batched = tf.nest.map_structure(lambda s: tf.TensorSpec([None, *s.shape]), specs[1])
        check_class_weight(class_weight, batched, key)
    rows = standard_elements(dataset, None, key, batched=False)
    arrays = materialize(rows, settings.cache_bytes, key)
    if arrays is None:
        return stream_source(rows, settings=settings, class_weight=class_weight, key=key)
    return array_source(arrays, settings=settings, class_weight=class_weight, key=key)
