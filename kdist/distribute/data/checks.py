"""Checks of data against the model and the cluster, before training starts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdist.distribute.data.source import BatchSource
from kdist.errors import ConfigError


def check_labels(
    y: Any,
    output_shape: Sequence[int | None],
    loss_name: str | None,
    *,
    key: str = "data.train",
    ignore_class: int | None = None,
) -> None:
    """Refuse labels that the loss would silently turn into NaN or nonsense.

    Args:
        y: One output's labels, an array; `()` if the data has none.
        output_shape: The shape of that output, batch axis included.
        loss_name: The loss's name in either spelling (`sparse_categorical_crossentropy`,
            `SparseCategoricalCrossentropy`); `None` if the output has no loss.
        key: The part, such as `data.train`.
        ignore_class: A label that the loss leaves out.

    Raises:
        ConfigError: If labels are missing, lie outside the model's outputs, or are class indices
            where one-hot rows are expected.
    """
    if loss_name is None:
        return
    if isinstance(y, tuple) and not y:
        raise ConfigError(
            f"{key} has no labels (y), which the loss {loss_name} needs. "
            "Return (x, y), or set loss=null for a model that adds its own loss."
        )
    name = loss_name.replace("_", "").lower()
    num_outputs = output_shape[-1] if output_shape else None
    if num_outputs is None:
        return
    y = np.asarray(y)
    if name == "sparsecategoricalcrossentropy":
        _check_class_indices(y, num_outputs, key, ignore_class)
    elif name in ("categoricalcrossentropy", "categoricalfocalcrossentropy") and (
        y.ndim < 2 or y.shape[-1] != num_outputs
    ):
        raise ConfigError(
            f"The loss {loss_name} needs a label of {num_outputs} numbers a row, as many as the "
            f"model's outputs. Received: labels of shape {y.shape} in {key}. "
            "For class indices use loss=sparse_categorical_crossentropy."
        )


def _check_class_indices(y: np.ndarray, num_outputs: int, key: str, ignored: int | None) -> None:
    if y.dtype.kind not in "biuf":
        raise ConfigError(
            f"{key} must have class indices as labels. Received: an array of {y.dtype}."
        )
    is_wrong = ~((y >= 0) & (y < num_outputs) & (np.round(y) == y))
    if ignored is not None:
        is_wrong &= y != ignored
    if is_wrong.any():
        where = tuple(int(i) for i in np.argwhere(is_wrong)[0])
        raise ConfigError(
            f"Labels must be class indices from 0 to {num_outputs - 1}, one for each of the "
            f"model's outputs. Received: {y[where]} in row {where[0]} of {key} "
            f"({int(is_wrong.sum())} of {y.size} labels are outside). "
            "Give the model more outputs (model.num_classes), or correct the labels."
        )


def check_enough_examples(source: BatchSource, num_workers: int, *, key: str) -> None:
    """Refuse data that would leave a worker without a single example.

    Raises:
        ConfigError: If there are fewer examples than workers.
    """
    if source.num_examples is not None and source.num_examples < num_workers:
        raise ConfigError(
            f"Each worker needs at least one example. Received: {source.num_examples} examples in "
            f"{key}, {num_workers} workers. Use fewer workers (cluster.workers) or more data."
        )


def num_steps(source: BatchSource, steps_per_epoch: int | None, *, key: str) -> int:
    """Return the batches of an epoch: what the user asked for, else one pass.

    Raises:
        ConfigError: If neither is known.
    """
    if steps_per_epoch is not None:
        return steps_per_epoch
    if source.batches_per_pass is None:
        raise ConfigError(
            f"The size of {key} is not known, so an epoch needs a length. "
            "Received: steps_per_epoch=None. Set steps_per_epoch, or tell the size with "
            "tf.data.experimental.assert_cardinality."
        )
    return source.batches_per_pass
