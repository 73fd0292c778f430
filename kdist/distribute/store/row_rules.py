"""Updates of single rows of a table: what `strategy.sparse=rows` does in place of Keras' update.

Each rule is the optimizer's own, on the rows that a batch reads; all other rows, and their slots,
stay as they are. For SGD and Adagrad that is the update of the whole table. Momentum, Adam ("lazy
Adam": its bias correction counts all steps) and Ftrl leave out what they would do to rows without
a gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.store.fused_updates import public_class

# (optimizer, step from 1, learning rate, rows, slots of the rows, gradient) -> (rows, slots)
RowRule = Callable[[Any, Any, Any, Any, Sequence[Any], Any], tuple[Any, list[Any]]]


def _sgd(
    optimizer: Any, step: Any, rate: Any, rows: Any, slots: Sequence[Any], gradient: Any
) -> tuple[Any, list[Any]]:
    del step
    if not slots:
        return rows - rate * gradient, []
    velocity = optimizer.momentum * slots[0] - rate * gradient
    if optimizer.nesterov:
        return rows + optimizer.momentum * velocity - rate * gradient, [velocity]
    return rows + velocity, [velocity]


def _adagrad(
    optimizer: Any, step: Any, rate: Any, rows: Any, slots: Sequence[Any], gradient: Any
) -> tuple[Any, list[Any]]:
    del step
    accumulator = slots[0] + tf.square(gradient)
    return rows - rate * gradient / tf.sqrt(accumulator + optimizer.epsilon), [accumulator]


def _adam(
    optimizer: Any, step: Any, rate: Any, rows: Any, slots: Sequence[Any], gradient: Any
) -> tuple[Any, list[Any]]:
    beta_1, beta_2 = (tf.constant(b, rows.dtype) for b in (optimizer.beta_1, optimizer.beta_2))
    alpha = rate * tf.sqrt(1 - tf.pow(beta_2, step)) / (1 - tf.pow(beta_1, step))
    mean = slots[0] + (gradient - slots[0]) * (1 - optimizer.beta_1)
    square = slots[1] + (tf.square(gradient) - slots[1]) * (1 - optimizer.beta_2)
    largest = [tf.maximum(slots[2], square)] if optimizer.amsgrad else []
    scale = tf.sqrt([square, *largest][-1]) + optimizer.epsilon
    return rows - alpha * mean / scale, [mean, square, *largest]


def _ftrl(
    optimizer: Any, step: Any, rate: Any, rows: Any, slots: Sequence[Any], gradient: Any
) -> tuple[Any, list[Any]]:
    del step
    power = -optimizer.learning_rate_power
    l1 = optimizer.l1_regularization_strength
    l2 = optimizer.l2_regularization_strength + optimizer.beta / (2.0 * rate)
    accumulator = slots[0] + tf.square(gradient)
    pull = (tf.pow(accumulator, power) - tf.pow(slots[0], power)) / rate
    shrunk = gradient + 2.0 * optimizer.l2_shrinkage_regularization_strength * rows
    linear = slots[1] + shrunk - pull * rows
    quadratic = tf.pow(accumulator, power) / rate + 2.0 * l2
    return (tf.clip_by_value(linear, -l1, l1) - linear) / quadratic, [accumulator, linear]


ROW_RULES: Mapping[type, RowRule] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.Adagrad: _adagrad,
    keras.optimizers.Adam: _adam,
    keras.optimizers.AdamW: _adam,
    keras.optimizers.Ftrl: _ftrl,
}


def sum_repeated(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Return a gradient of rows in which each id occurs once, with the sum of its rows."""
    ids, where = tf.unique(gradient.indices)
    total = tf.math.unsorted_segment_sum(gradient.values, where, tf.size(ids))
    return tf.IndexedSlices(total, ids, gradient.dense_shape)


def update_rows(
    optimizer: keras.optimizers.Optimizer,
    table: keras.Variable,
    slots: Sequence[keras.Variable],
    gradient: tf.IndexedSlices,
) -> None:
    """Update the rows of a table that have a gradient; call it before the optimizer's `apply`.

    On the device of the table: nothing of the size of the table is read or written. In
    cross-replica context each replica's copy takes the same update.

    Args:
        optimizer: A built clone; its type is a key of `ROW_RULES`.
        table: The table or a piece of it.
        slots: Its slots, in the order in which the optimizer creates them.
        gradient: Rows with their ids, each id once; see `sum_repeated`.
    """
    rule = ROW_RULES[public_class(type(optimizer))]
    rate: Any = optimizer.learning_rate
    step = keras_adapter.own_iterations(optimizer) + 1
    ids, total = gradient.indices, gradient.values
    if optimizer.loss_scale_factor is not None:
        total = total / optimizer.loss_scale_factor
    if optimizer.clipvalue is not None:
        total = tf.clip_by_value(total, -optimizer.clipvalue, optimizer.clipvalue)

    def update(
        variable: tf.Variable, ids: Any, total: Any, rate: Any, step: Any, *own_slots: tf.Variable
    ) -> None:
        rows = tf.gather(variable, ids)
        rate, step = tf.cast(rate, rows.dtype), tf.cast(step, rows.dtype)
        old = [tf.gather(slot, ids) for slot in own_slots]
        new_rows, new = rule(optimizer, step, rate, rows, old, tf.cast(total, rows.dtype))
        for each, value in zip((variable, *own_slots), (new_rows, *new), strict=True):
            each.scatter_update(tf.IndexedSlices(value, ids))

    variable: Any = table.value
    args = (ids, total, tf.convert_to_tensor(rate), step, *(slot.value for slot in slots))
    strategy = getattr(variable, "distribute_strategy", None) or tf.distribute.get_strategy()
    strategy.extended.update(variable, update, args=args, group=False)
