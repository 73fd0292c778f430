"""First values of embedding tables under `strategy.sparse=rows`, drawn where they will live.

They are drawn in blocks of rows, each from a seed of its own, so that a piece of a table on a
server gets the very rows that the whole table would have, and nobody holds more than a block
beside it. They differ from what Keras draws for the whole table at once.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute.buckets.layout import Rows

BLOCK_ROWS = 1 << 16

_I = keras.initializers
# Initializers that draw each element alike, whatever the shape.
_DRAWN_ALIKE = (_I.Zeros, _I.Ones, _I.RandomUniform, _I.RandomNormal, _I.TruncatedNormal)
_SCALED_BY_FANS = (
    _I.VarianceScaling,
    _I.GlorotUniform,
    _I.GlorotNormal,
    _I.HeUniform,
    _I.HeNormal,
    _I.LecunUniform,
    _I.LecunNormal,
)


def can_draw_blocks(initializer: Any) -> bool:
    """Return whether a table of this initializer can be drawn in blocks of rows."""
    if type(initializer) is _I.Constant:
        return isinstance(initializer.value, int | float)
    is_seeded = isinstance(getattr(initializer, "seed", 0), int)
    return type(initializer) in (*_DRAWN_ALIKE, *_SCALED_BY_FANS) and is_seeded


def fill_rows(variable: tf.Variable, layer: keras.layers.Embedding, rows: Rows) -> None:
    """Give `variable`, which holds some rows of a layer's table, their first values, in place.

    Blocks are drawn where the variable lives, one after the other, in a graph as well.
    """
    done: list[Any] = []
    for first in range(0, layer.input_dim, BLOCK_ROWS):
        num = min(BLOCK_ROWS, layer.input_dim - first)
        skipped = (rows.first - first) % rows.step if first > rows.first else rows.first - first
        mine = range(max(0, skipped), min(num, rows.stop - first), rows.step)
        if not mine:
            continue
        target = (first + mine.start - rows.first) // rows.step
        with tf.device(variable.device), tf.control_dependencies(done):
            block = draw_block(layer, first)[mine.start : mine.stop : mine.step]
            done = [
                tf.raw_ops.ResourceStridedSliceAssign(
                    ref=variable.handle,
                    begin=[target],
                    end=[target + len(mine)],
                    strides=[1],
                    value=tf.cast(block, variable.dtype),
                )
            ]


def draw_block(
    layer: keras.layers.Embedding, first_row: int, most_rows: int | None = None
) -> tf.Tensor:
    """Return the first values of up to `BLOCK_ROWS` rows of a layer's table, from `first_row` on.

    Args:
        layer: An embedding whose initializer `can_draw_blocks`.
        first_row: A multiple of `BLOCK_ROWS`.
        most_rows: How many rows at most; values depend on it.
    """
    initializer: Any = layer.embeddings_initializer
    whole = (layer.input_dim, layer.output_dim)
    shape = (min(most_rows or BLOCK_ROWS, BLOCK_ROWS, whole[0] - first_row), whole[1])
    config = initializer.get_config()
    if "seed" in config:
        config["seed"] = (int(initializer.seed) + 7919 * (first_row // BLOCK_ROWS)) % (2**31 - 1)
    values = type(initializer).from_config(config)(shape, dtype="float32")
    return values * _fan_factor(initializer, shape, whole)


def _fan_factor(initializer: Any, shape: tuple[int, int], whole: tuple[int, int]) -> float:
    """Return what turns values scaled for a block into values scaled for the whole table."""
    if type(initializer) not in _SCALED_BY_FANS:
        return 1.0
    fan: Callable[[tuple[int, int]], float] = {
        "fan_in": lambda s: max(1.0, s[0]),
        "fan_out": lambda s: max(1.0, s[1]),
        "fan_avg": lambda s: max(1.0, (s[0] + s[1]) / 2),
    }[initializer.mode]
    return (fan(shape) / fan(whole)) ** 0.5
