"""Embedding tables that a step does not read whole, and how a trace of the model is told so.

Before a step's compute, the forward pass is traced once more to find which ids each embedding
layer is asked for (everything else of that trace is pruned). The unique rows are gathered where
the table lives, and the compute sees them in the table's place.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf


@dataclass(frozen=True)
class Table:
    """A table, and the layers that look it up.

    Attributes:
        bucket_indices: Its bucket, or those of its pieces: id `i` is in piece `i % len(...)`.
        variable_index: Its position among the trainable variables.
        layers: The layers that share it.
        num_calls: Look-ups in a step, over all layers.
        is_by_rows: Whether an update changes only the rows of a batch (`strategy.sparse=rows`).
    """

    bucket_indices: tuple[int, ...]
    variable_index: int
    layers: tuple[keras.layers.Embedding, ...]
    num_calls: int
    is_by_rows: bool = False

    @property
    def name(self) -> str:
        """Return how a message calls it."""
        return " and ".join(layer.name for layer in self.layers)

    @property
    def num_rows(self) -> int:
        """Return how many ids it knows."""
        return self.layers[0].input_dim


class Lookups:
    """Which tables are looked up, and how a trace of the model is told to do so."""

    def __init__(self, tables: Sequence[Table]):
        """Hold the tables, from `find_tables`.

        A step's rows of a table stand in the place of its first bucket, and `left_out` are others.
        """
        self.tables = tuple(tables)
        self.bucket_indices = frozenset(i for table in tables for i in table.bucket_indices)
        self.left_out = frozenset(i for table in tables for i in table.bucket_indices[1:])
        self.variable_indices = frozenset(table.variable_index for table in tables)

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[list[tf.Tensor]]]:
        """Let the layers record the ids that they are asked for, by table, and answer zeros."""
        found: list[list[tf.Tensor]] = [[] for _ in self.tables]

        def record(position: int, layer: keras.layers.Embedding, ids: tf.Tensor) -> tf.Tensor:
            found[position].append(_valid_ids(layer, ids))
            shape = tf.concat([tf.shape(ids), [layer.output_dim]], 0)
            return tf.ensure_shape(
                tf.zeros(shape, layer.compute_dtype), [*ids.shape, layer.output_dim]
            )

        with self._replaced(record):
            yield found

    @contextlib.contextmanager
    def answering(self, rows: Sequence[Any], positions: Sequence[Sequence[Any]]) -> Iterator[None]:
        """Let the layers take their outputs from `rows`.

        Args:
            rows: By table, the unique rows of a step.
            positions: By table and call, where in `rows` each id's row is: int32 vectors.
        """
        calls = [iter(one_table) for one_table in positions]

        def answer(position: int, layer: keras.layers.Embedding, ids: tf.Tensor) -> tf.Tensor:
            where = tf.reshape(next(calls[position]), tf.shape(ids))
            outputs = tf.gather(rows[position], where)
            outputs = tf.ensure_shape(outputs, [*ids.shape, layer.output_dim])
            return tf.cast(outputs, layer.compute_dtype)

        with self._replaced(answer):
            yield

    @contextlib.contextmanager
    def _replaced(
        self, answer: Callable[[int, keras.layers.Embedding, tf.Tensor], tf.Tensor]
    ) -> Iterator[None]:
        """Replace `call` of these layer objects, and of no others, inside the block."""
        replaced = []
        try:
            for position, table in enumerate(self.tables):
                for layer in table.layers:
                    one_layer: Any = layer
                    one_layer.call = _bound(answer, position, layer)
                    replaced.append(layer)
            yield
        finally:
            for layer in replaced:
                del layer.call


def _bound(answer: Any, position: int, layer: keras.layers.Embedding) -> Callable[[Any], tf.Tensor]:
    return lambda inputs: answer(position, layer, inputs)


def _valid_ids(layer: keras.layers.Embedding, ids: Any) -> tf.Tensor:
    """Return ids as Keras reads them: integers, negative ones counted from the table's end."""
    ids = tf.cast(ids, tf.int64)
    return tf.reshape(tf.where(ids < 0, ids + layer.input_dim, ids), [-1])
