"""Rows take the optimizer's own update, repeated ids summed; other rows stay as they are."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.store.row_rules import ROW_RULES, sum_repeated, update_rows

optimizers = keras.optimizers
RULES = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adam": lambda: optimizers.Adam(0.05),
    "amsgrad": lambda: optimizers.Adam(0.05, amsgrad=True, clipvalue=0.5),
    "adamw": lambda: optimizers.AdamW(0.05, weight_decay=0.0),
    "ftrl": lambda: optimizers.Ftrl(
        0.1,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        l2_shrinkage_regularization_strength=0.03,
        beta=0.1,
    ),
    "scheduled": lambda: optimizers.Adam(
        optimizers.schedules.CosineDecay(0.1, 4), loss_scale_factor=4.0
    ),
}
NUM_ROWS, WIDTH = 6, 3


def built(make, value):
    variable = keras.Variable(value)
    optimizer = make()
    with keras_adapter.recorded_slots(optimizer) as recorded:
        optimizer.build([variable])
    return optimizer, variable, [slot for _, slot in recorded]


@pytest.mark.parametrize("name", RULES)
def test_rows_with_a_gradient_move_as_keras_moves_them(name):
    """Every row has a gradient in every step, so nothing is left out; ids repeat."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=(NUM_ROWS, WIDTH)).astype("float32")
    reference, expected, _ = built(RULES[name], start)
    optimizer, table, slots = built(RULES[name], start)
    ids = np.array([5, 0, 1, 2, 3, 4, 0, 5])
    for _ in range(4):
        values = rng.normal(size=(len(ids), WIDTH)).astype("float32")
        dense = np.zeros_like(start)
        np.add.at(dense, ids, values)
        reference.apply([tf.constant(dense)], [expected])
        gradient = sum_repeated(tf.IndexedSlices(tf.constant(values), ids))
        update_rows(optimizer, table, slots, gradient)
        keras_adapter.own_iterations(optimizer).assign_add(1)
    np.testing.assert_allclose(table.numpy(), expected.numpy(), atol=2e-6)
    assert optimizer.learning_rate == reference.learning_rate


@pytest.mark.parametrize("name", RULES)
def test_other_rows_and_their_slots_stay(name):
    start = np.ones((NUM_ROWS, WIDTH), "float32")
    optimizer, table, slots = built(RULES[name], start)
    before = [slot.numpy() for slot in slots]
    for _ in range(2):
        gradient = tf.IndexedSlices(tf.ones((2, WIDTH)), tf.constant([1, 4], tf.int64))
        update_rows(optimizer, table, slots, gradient)
    changed = np.any(table.numpy() != start, axis=1)
    assert changed.tolist() == [False, True, False, False, True, False]
    for slot, old in zip(slots, before, strict=True):
        assert np.any(slot.numpy() != old, axis=1).tolist() == changed.tolist()


def test_every_rule_is_in_this_table():
    assert {type(make()) for make in RULES.values()} == set(ROW_RULES)
