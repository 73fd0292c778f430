"""Models that take one number of rows only: `Input(batch_shape=...)`, and layers that rely on it.

A model whose layers do not rely on it takes any number of rows, as in Keras.
"""

from typing import Any

import keras
import tensorflow as tf

from kdist.config.schema import DataConfig
from kdist.distribute.data import BatchSource
from kdist.distribute.model.structure import call_keeping_state
from kdist.errors import ConfigError

_ANY_ROWS = 4


def rows_to_build_on(model: keras.Model) -> int:
    """Return how many rows to build a model on."""
    return _fixed_size(model) or _ANY_ROWS


def takes_any_rows(model: keras.Model, x: Any) -> bool:
    """Whether a built model takes other numbers of rows than its inputs name.

    Args:
        model: The model.
        x: Inputs of `rows_to_build_on` rows.
    """
    size = _fixed_size(model)
    if size is None:
        return True
    num_rows = size - 1 if size > 1 else 2
    others = tf.nest.map_structure(lambda a: tf.repeat(a[:1], num_rows, axis=0), x)
    try:
        outputs = call_keeping_state(model, others)
    except (ValueError, TypeError, tf.errors.OpError):
        return False
    return all(leaf.shape[0] == num_rows for leaf in keras.tree.flatten(outputs))


def refuse_other_sizes(
    model: keras.Model,
    data: DataConfig,
    train: BatchSource,
    validation: BatchSource | None,
    *,
    num_shares: int,
) -> None:
    """Refuse data of which a model that does not take any number of rows would be given another.

    Args:
        model: The model.
        data: The settings of the data.
        train: The training data, whose batches are split into shares.
        validation: The validation data, whose batches are evaluated whole.
        num_shares: Shares of a batch.

    Raises:
        ConfigError: Naming the sizes there are, and those that would fit.
    """
    size = _fixed_size(model)
    assert size is not None
    found = _misfits(train, "data.train", data.batch_size, size * num_shares)
    if validation is not None:
        configured = data.validation_batch_size or data.batch_size
        found += _misfits(validation, "data.validation", configured, size)
    if found:
        shares = "the whole" if num_shares == 1 else f"each of the {num_shares} shares"
        raise ConfigError(
            f"{model.name} takes {size} rows at a time, no more and no fewer "
            f"(Input(batch_shape=...)): {shares} of a batch must have that many. Received: "
            f"{'; '.join(found)}. Set data.batch_size={size * num_shares} and "
            f"data.validation_batch_size={size}, leave out rows that are left over, or build the "
            "model for any number of rows."
        )


def _misfits(source: BatchSource, key: str, configured: int, wanted: int) -> list[str]:
    num_rows = configured
    if source.kind not in ("arrays", "stream"):
        num_rows = len(tf.nest.flatten(source.first_batch(1 << 30))[0])
    if num_rows != wanted:
        return [f"batches of {num_rows} rows in {key}, where {wanted} would fit"]
    left = (source.num_examples or 0) % num_rows
    if left:
        return [f"{left} rows in the last batch of {key} ({source.num_examples} examples)"]
    return []


def _fixed_size(model: keras.Model) -> int | None:
    """Return the number of rows that all inputs name; `None` if they leave it open."""
    sizes = {leaf.shape[0] for leaf in keras.tree.flatten(getattr(model, "inputs", None) or [])}
    return sizes.pop() if len(sizes) == 1 else None
