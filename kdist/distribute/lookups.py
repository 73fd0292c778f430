"""Embedding tables that stay on their servers: only the rows of a batch travel.

Before a step's compute, the forward pass is traced once more to find which ids each embedding
layer is asked for (everything else of that trace is pruned). The unique rows are gathered where
the table lives, and the compute sees them in the table's place. The update is that of the whole
table: the optimizer on the server is given the same (rows, row ids) as in every other mode.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.layout import LARGE_VARIABLE_BYTES, BucketLayout
from kdist.distribute.structure import ModelStructure, call_model


@dataclass(frozen=True)
class Table:
    """A table and its layers: `bucket_index` is its bucket, `num_calls` the look-ups in a step."""

    bucket_index: int
    variable_index: int
    layers: tuple[keras.layers.Embedding, ...]
    num_calls: int


class Lookups:
    """Which tables are looked up, and how a trace of the model is told to do so."""

    def __init__(self, tables: Sequence[Table]):
        """Hold the tables, from `find_tables`."""
        self.tables = tuple(tables)
        self.bucket_indices = frozenset(table.bucket_index for table in tables)
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


def find_tables(structure: ModelStructure, layout: BucketLayout, x_spec: Any) -> Lookups:
    """Return the large tables that nothing but plain embedding layers reads.

    Tied weights, regularizers, LoRA and quantized tables are read whole, as other variables are.
    """
    candidates = []
    for bucket_index, bucket in enumerate(layout.buckets):
        if not bucket.has_sparse_gradient or bucket.num_bytes < LARGE_VARIABLE_BYTES:
            continue
        index = bucket.members[0].variable_index
        layers = tuple(
            layer
            for layer in keras_adapter.all_layers(structure.model)
            if type(layer) is keras.layers.Embedding
            and layer.trainable_variables
            and layer.trainable_variables[0] is structure.trainable[index]
            and len(layer.trainable_variables) == 1
            and layer.embeddings_regularizer is None
        )
        if layers:
            candidates.append(Table(bucket_index, index, layers, 0))
    if not candidates:
        return Lookups(())
    return _without_other_readers(structure, Lookups(candidates), x_spec)


def _without_other_readers(structure: ModelStructure, lookups: Lookups, x_spec: Any) -> Lookups:
    """Trace the forward pass with recorded look-ups; drop tables that are read some other way."""
    variables = [*structure.trainable, *structure.model.non_trainable_variables]
    seen: dict[str, Any] = {}

    def forward(values: list[Any], x: Any) -> tf.Tensor:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            mapping = list(zip(variables, values, strict=True))
            with keras.StatelessScope(mapping), lookups.recording() as found:
                y_pred = call_model(structure.model, x, training=True)
            total = tf.add_n([_total(leaf) for leaf in keras.tree.flatten(y_pred)])
        tables = [values[table.variable_index] for table in lookups.tables]
        seen["gradients"] = tape.gradient(total, tables)
        seen["calls"] = [len(ids) for ids in found]
        return total

    specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
    tf.function(forward, autograph=False).get_concrete_function(specs, x_spec)
    return Lookups(
        [
            Table(table.bucket_index, table.variable_index, table.layers, num_calls)
            for table, gradient, num_calls in zip(
                lookups.tables, seen["gradients"], seen["calls"], strict=True
            )
            if gradient is None and num_calls > 0
        ]
    )


def _total(leaf: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(leaf, tf.float32))
