"""One kernel updates a large variable as Keras' operations do, with the same slots."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.store import fused_updates
from kdist.distribute.store.fused_updates import FUSED_FROM_BYTES, fused_class, public_class
from kdist.distribute.store.optimizer import clone_optimizer
from kdist.distribute.values import to_numpy

optimizers = keras.optimizers
DECAY: Any = optimizers.schedules.CosineDecay(0.1, 4)
# Optimizer, and the kernel that it takes for a large variable.
KERNELS = {
    "sgd": (lambda: optimizers.SGD(0.1), "ResourceApplyGradientDescent"),
    "momentum": (lambda: optimizers.SGD(0.1, momentum=0.9), "ResourceApplyKerasMomentum"),
    "nesterov": (
        lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.5),
        "ResourceApplyKerasMomentum",
    ),
    "adam": (lambda: optimizers.Adam(0.05, beta_1=0.8, epsilon=1e-3), "ResourceApplyAdam"),
    "clipped": (lambda: optimizers.Adam(0.05, clipnorm=0.3), "ResourceApplyAdam"),
    "adamw": (
        lambda: optimizers.AdamW(0.05, weight_decay=0.1, use_ema=True, ema_momentum=0.7),
        "ResourceApplyAdam",
    ),
    "accumulating": (
        lambda: optimizers.Adam(0.05, gradient_accumulation_steps=2),
        "ResourceApplyAdam",
    ),
    "scheduled": (
        lambda: optimizers.Adam(learning_rate=DECAY),
        "ResourceApplyAdam",
    ),
    "amsgrad": (lambda: optimizers.Adam(0.05, amsgrad=True), None),
    "rmsprop": (lambda: optimizers.RMSprop(0.05), None),
}
LARGE = (FUSED_FROM_BYTES // 4 // 64 + 1, 64)


def trained(optimizer, gradients, dtype="float32"):
    """Return the weights and the slots after `apply` in a graph, and the graph's operations."""
    variable = keras.Variable(np.linspace(-1, 1, gradients[0].size).reshape(LARGE), dtype=dtype)
    optimizer.build([variable])
    apply = tf.function(lambda gradient: optimizer.apply([gradient], [variable]))
    for gradient in gradients:
        apply(tf.cast(gradient, dtype))
    function = apply.get_concrete_function(tf.TensorSpec(LARGE, dtype))
    definition = function.graph.as_graph_def()
    kinds = {node.op for node in definition.node}
    kinds |= {node.op for each in definition.library.function for node in each.node_def}
    return to_numpy(variable), [to_numpy(v) for v in optimizer.variables], kinds


def random_gradients(num=5):
    rng = np.random.default_rng(3)
    return [rng.normal(size=LARGE).astype("float32") for _ in range(num)]


@pytest.mark.parametrize("name", KERNELS)
def test_a_large_variable_is_updated_by_one_kernel_as_by_keras(name):
    make, kernel = KERNELS[name]
    gradients = random_gradients()
    expected, expected_slots, _ = trained(make(), gradients)
    values, slots, kinds = trained(clone_optimizer(make()), gradients)
    np.testing.assert_allclose(values, expected, atol=1e-6)
    for slot, wanted in zip(slots, expected_slots, strict=True):
        np.testing.assert_allclose(slot, wanted, atol=1e-6)
    assert {kind for kind in kinds if kind.startswith("ResourceApply")} == {kernel} - {None}


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw"])
def test_double_precision_is_kept(name):
    make, kernel = KERNELS[name]
    gradients = random_gradients()
    expected, expected_slots, _ = trained(make(), gradients, "float64")
    values, slots, kinds = trained(clone_optimizer(make()), gradients, "float64")
    assert kernel in kinds
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-12)
    for slot, wanted in zip(slots, expected_slots, strict=True):
        np.testing.assert_allclose(slot, wanted, rtol=0, atol=1e-12)


def test_rows_small_variables_and_half_precision_take_the_update_of_keras(monkeypatch):
    optimizer = clone_optimizer(optimizers.SGD(0.5))
    variable = keras.Variable(np.ones((4, 2), "float32"))
    half = keras.Variable(np.ones((4, 2)), dtype="float16")
    optimizer.build([variable, half])
    monkeypatch.setattr(tf.raw_ops, "ResourceApplyGradientDescent", None)
    ones = tf.ones((4, 2))
    optimizer.apply([ones, tf.cast(ones, tf.float16)], [variable, half])
    monkeypatch.setattr(fused_updates, "FUSED_FROM_BYTES", 0)
    row: Any = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([3]), tf.constant([4, 2]))
    optimizer.apply([row, tf.cast(ones, tf.float16)], [variable, half])
    np.testing.assert_allclose(to_numpy(variable), [[0.5, 0.5]] * 3 + [[0.0, 0.0]])
    np.testing.assert_allclose(to_numpy(half), np.zeros((4, 2)))


def test_a_class_and_what_stands_for_it():
    for public in (optimizers.SGD, optimizers.Adam, optimizers.AdamW):
        fused = fused_class(public)
        assert fused is not public and issubclass(fused, public)
        assert public_class(fused) is public
        assert fused(0.1, name="a").get_config() == public(0.1, name="a").get_config()
    assert fused_class(optimizers.Ftrl) is optimizers.Ftrl is public_class(optimizers.Ftrl)
