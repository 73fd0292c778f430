"""Elements of a user's tf.data.Dataset: their structure, checked, and brought to `(x, y, w)`."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute.data.class_weights import (
    check_class_weight,
    class_weight_rows_op,
    combined,
)
from kdist.distribute.data.nests import is_always_nest, map_named, named_leaves, split_part
from kdist.distribute.data.source import map_plain
from kdist.distribute.shares import WorkerShare, worker_block_op
from kdist.errors import ConfigError


def element_specs(dataset: tf.data.Dataset, key: str) -> Any:
    """Return the specs `(x, y, sample_weight)` of a dataset's elements, `()` for what is missing.

    Raises:
        ConfigError: If elements have another structure, or are ragged or sparse.
    """
    spec = dataset.element_spec
    parts = spec if isinstance(spec, tuple) and type(spec) is tuple else (spec,)
    parts = tuple(None if _is_none(part) else part for part in parts)
    x, y, sample_weight = split_part(parts, f"An element of {key}")
    for name, leaf in _named_parts(x, y, sample_weight, key):
        if not isinstance(leaf, tf.TensorSpec):
            raise ConfigError(
                f"{name} must be a dense tensor. Received: {type(leaf).__name__}. "
                "Pad or densify it in the dataset."
            )
    return x, y, sample_weight


def refuse_batched(specs: Any, key: str) -> None:
    """Refuse a dataset that looks batched: every tensor starts with an axis of unknown size.

    Raises:
        ConfigError: If so.
    """
    shapes = [leaf.shape for leaf in tf.nest.flatten(specs)]
    if all(shape.rank and shape[0] is None for shape in shapes):
        raise ConfigError(
            f"{key} must be an unbatched tf.data.Dataset; kdist batches it (data.batch_size). "
            f"Received: elements of shapes {', '.join(str(shape) for shape in shapes)}. "
            "Leave out .batch(), or call .unbatch(); pad sequences to one length."
        )


def standard_elements(
    dataset: tf.data.Dataset, class_weight: Mapping[int, float] | None, key: str, *, batched: bool
) -> tf.data.Dataset:
    """Return a dataset of `(x, y, sample_weight)` with Keras' float type.

    Args:
        dataset: Elements as `element_specs` accepts them.
        class_weight: Class index to weight, or `None`; allowed for batched elements only.
        key: What to call the part in messages.
        batched: Whether elements are batches.

    Raises:
        ConfigError: If the elements, or the class weights with them, cannot be used.
    """
    specs = element_specs(dataset, key)
    if class_weight is not None and batched:
        check_class_weight(class_weight, specs[1], key)
    num_parts = len(dataset.element_spec) if type(dataset.element_spec) is tuple else 0

    def standardize(*element: Any) -> Any:
        parts = element if num_parts else element[:1]
        parts = tuple(None if _is_none(part) else part for part in parts)
        x, y, sample_weight = split_part(parts, key)
        x, y = (map_named(_as_floatx, part, key, is_always_nest) for part in (x, y))
        sample_weight = map_named(_as_weight, sample_weight, key, is_always_nest)
        if class_weight is not None and batched:
            sample_weight = combined(class_weight_rows_op(y, class_weight), sample_weight)
        return x, y, sample_weight

    options = tf.data.Options()
    options.deterministic = True
    return map_plain(dataset.with_options(options), standardize)


def own_block(batch: Any, share: WorkerShare) -> Any:
    """Return a worker's block of a global batch, and the rows of the global batch.

    Args:
        batch: Nest of tensors `(x, y, sample_weight)`, the whole global batch.
        share: The worker that reads.
    """
    num_rows = num_rows_of(batch)
    if share.num_workers > 1:
        lo, hi = worker_block_op(num_rows, share)
        batch = tf.nest.map_structure(lambda t: t[lo:hi], batch)
    return (*batch, num_rows)


def num_rows_of(batch: Any) -> Any:
    """Return the number of rows of a batch, an int64 scalar tensor."""
    return tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]


def batch_specs(dataset: tf.data.Dataset) -> Any:
    """Return the element specs of a dataset of batches with the batch axis set to `None`."""
    return tf.nest.map_structure(
        lambda spec: (
            tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if spec.shape.rank else spec
        ),
        dataset.element_spec,
    )


def row_bytes(specs: Any) -> int | None:
    """Return the size of one unbatched element, or `None` if the specs do not say."""
    total = 0
    for spec in tf.nest.flatten(specs):
        if not spec.shape.is_fully_defined() or spec.dtype == tf.string:
            return None
        total += spec.shape.num_elements() * spec.dtype.size
    return total


def _named_parts(x: Any, y: Any, sample_weight: Any, key: str) -> list[tuple[str, Any]]:
    return [
        *named_leaves(x, f"{key} x"),
        *named_leaves(y, f"{key} y"),
        *named_leaves(sample_weight, f"{key} sample_weight"),
    ]


def _is_none(value: Any) -> bool:
    return value is None or isinstance(value, tf.NoneTensorSpec)


def _as_floatx(tensor: Any, _: str) -> Any:
    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor


def _as_weight(tensor: Any, _: str) -> Any:
    return tf.cast(tensor, keras.config.floatx())
