"""What the losses of a model ask of labels, for data that is at hand and for batches that come."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LabelRule:
    """The labels of one output, and the loss that takes them.

    Attributes:
        path: Keys and indices from all labels to those of the output.
        output_shape: The output's shape, batch axis included.
        loss_name: As for `check_labels`.
        ignore_class: A label that the loss leaves out.
    """

    path: tuple[Any, ...]
    output_shape: tuple[int | None, ...]
    loss_name: str | None
    ignore_class: int | None = None

    def part_of(self, nest: Any) -> Any:
        """Return this output's part of all labels or outputs; `None` if nests differ.

        Keras matches labels and outputs of different nests in its own ways.
        """
        try:
            return functools.reduce(lambda part, key: part[key], self.path, nest)
        except (KeyError, IndexError, TypeError):
            return None

    @property
    def num_classes(self) -> int | None:
        """Return below what labels must be; `None` for losses that take no class indices."""
        if not _takes_class_indices(self.loss_name) or not self.output_shape:
            return None
        return self.output_shape[-1]


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
    num_outputs = output_shape[-1] if output_shape else None
    if num_outputs is None:
        return
    y = np.asarray(y)
    if _takes_class_indices(loss_name):
        _check_class_indices(y, num_outputs, key, ignore_class)
    elif _plain_name(loss_name) in ("categoricalcrossentropy", "categoricalfocalcrossentropy") and (
        y.ndim < 2 or y.shape[-1] != num_outputs
    ):
        raise ConfigError(
            f"The loss {loss_name} needs a label of {num_outputs} numbers a row, as many as the "
            f"model's outputs. Received: labels of shape {y.shape} in {key}. "
            "For class indices use loss=sparse_categorical_crossentropy."
        )


def refuse_wrong_labels(y: Any, rules: Sequence[LabelRule], key: str) -> None:
    """Check arrays of labels.

    Args:
        y: All labels.
        rules: One for each compiled loss.
        key: What to call the data in messages, such as `data.train`.

    Raises:
        ConfigError: See `check_labels`.
    """
    for rule in rules:
        labels = rule.part_of(y)
        if labels is not None:
            check_labels(
                labels, rule.output_shape, rule.loss_name, key=key, ignore_class=rule.ignore_class
            )


def watched(batch: Any, rules: Sequence[LabelRule], key: str) -> Any:
    """Return a batch of tensors `(x, y, ...)` whose reading fails at a label that is no class.

    On GPUs, the loss of such a label is NaN, and nobody says why.
    """
    x, y, *rest = batch
    asserted = [
        _assert_classes(labels, rule, key)
        for rule in rules
        if rule.num_classes is not None
        and isinstance(labels := rule.part_of(y), tf.Tensor)
        and labels.dtype != tf.string
    ]
    with tf.control_dependencies(asserted):
        return x, tf.nest.map_structure(tf.identity, y), *rest


def _assert_classes(labels: tf.Tensor, rule: LabelRule, key: str) -> tf.Operation:
    assert rule.num_classes is not None
    labels = tf.reshape(labels, [-1])
    values = tf.cast(labels, tf.float64)
    is_class = (values >= 0) & (values < rule.num_classes) & (tf.round(values) == values)
    if rule.ignore_class is not None:
        is_class |= values == tf.cast(rule.ignore_class, tf.float64)
    wrong = tf.boolean_mask(labels, tf.logical_not(is_class))[:3]
    message = tf.strings.join(
        [
            f"Labels must be class indices from 0 to {rule.num_classes - 1}, one for each of the "
            "model's outputs. Received: ",
            tf.strings.reduce_join(tf.strings.as_string(wrong), separator=", "),
            f" in a batch of {key}. Give the model more outputs (model.num_classes), or correct "
            "the labels.",
        ]
    )
    return tf.debugging.Assert(tf.reduce_all(is_class), [message])


def _takes_class_indices(loss_name: str | None) -> bool:
    """Whether a loss, named in either spelling, takes class indices as labels."""
    return _plain_name(loss_name) == "sparsecategoricalcrossentropy"


def _plain_name(loss_name: str | None) -> str:
    return (loss_name or "").replace("_", "").lower()


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
