"""Embedding tables that are built without a value: structure without memory.

What `keras.StatelessScope(initialize_variables=False)` does to all variables, done to the tables
only, so that a model function may compile, adapt and load as it likes.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.layout import Rows
from kdist.distribute.buckets.table_values import can_draw_blocks, draw_block, fill_rows

STAND_IN_ROWS = 64


@contextlib.contextmanager
def building_without_values() -> Iterator[None]:
    """Let embedding layers that are made inside the block build their table without a value.

    Until `release` such a layer answers with rows of a small table in place of its own, so that a
    model can be called. Tables that are regularized, constrained, frozen, or cannot be drawn in
    blocks are built as ever.
    """
    layer_class: Any = keras.layers.Embedding
    original: Callable[..., Any] = layer_class.build

    def build(layer: Any, input_shape: Any = None) -> None:
        if layer.built or not _may_wait(layer):
            original(layer, input_shape)
            return
        keras_adapter.build_without_value(layer, lambda: original(layer, input_shape))
        layer.call = _StandIn(layer)

    layer_class.build = build
    try:
        yield
    finally:
        layer_class.build = original


@contextlib.contextmanager
def answering_for_tables(model: keras.Model) -> Iterator[None]:
    """Let layers whose table has no value answer as they do before `release`, inside the block."""
    waiting: list[Any] = [
        layer
        for layer in keras_adapter.all_layers(model)
        if type(layer) is keras.layers.Embedding
        and any(not keras_adapter.has_value(variable) for variable in layer.weights)
    ]
    for layer in waiting:
        layer.call = _StandIn(layer)
    try:
        yield
    finally:
        release(model)


def release(model: keras.Model) -> None:
    """Let the layers of a model look up their own tables again."""
    for layer in keras_adapter.all_layers(model):
        if isinstance(vars(layer).get("call"), _StandIn):
            del layer.call


def fill(variable: keras.Variable, layer: keras.layers.Embedding) -> None:
    """Draw the first values of a layer's table in this process."""
    num_rows = layer.input_dim
    value = tf.Variable(tf.zeros(variable.shape, variable.dtype))
    fill_rows(value, layer, Rows(first=0, stop=num_rows))
    keras_adapter.give_value(variable, value.value())


def _may_wait(layer: Any) -> bool:
    return (
        type(layer) is keras.layers.Embedding
        and layer.trainable
        and layer.embeddings_regularizer is None
        and layer.embeddings_constraint is None
        and not layer.lora_rank
        and not layer.quantization_mode
        and can_draw_blocks(layer.embeddings_initializer)
    )


class _StandIn:
    """Answers for a layer whose table has no value."""

    def __init__(self, layer: Any):
        self._layer = layer

    def __call__(self, inputs: Any) -> Any:
        layer = self._layer
        rows = draw_block(layer, 0, STAND_IN_ROWS)
        num_rows = tf.shape(rows, out_type=tf.int64)[0]
        ids = tf.math.floormod(tf.cast(inputs, tf.int64), num_rows)
        return tf.cast(tf.gather(rows, ids), layer.compute_dtype)
