"""Finds the embedding tables that nothing but plain embedding layers reads."""

from collections.abc import Collection
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.layout import LARGE_VARIABLE_BYTES, BucketLayout
from kdist.distribute.model.lookups import Lookups, Table
from kdist.distribute.model.structure import ModelStructure, call_model


def find_tables(
    structure: ModelStructure, layout: BucketLayout, x_spec: Any, *, also_large: bool = True
) -> Lookups:
    """Return the tables whose rows a step fetches: those updated by rows, and large ones.

    Tied weights, regularizers, LoRA and quantized tables are read whole, as other variables are.

    Args:
        structure: The probed structure of the model.
        layout: Its buckets.
        x_spec: The signature of a batch's inputs.
        also_large: Whether to look up large tables too that are updated whole.
    """
    buckets: dict[int, list[int]] = {}
    for bucket_index, bucket in enumerate(layout.buckets):
        if bucket.has_sparse_gradient:
            buckets.setdefault(bucket.members[0].variable_index, []).append(bucket_index)
    wanted = {
        index: tuple(where)
        for index, where in buckets.items()
        if index in structure.by_rows
        or (also_large and sum(layout.buckets[i].num_bytes for i in where) >= LARGE_VARIABLE_BYTES)
    }
    return _only_looked_up(structure, wanted, x_spec)


def only_looked_up(structure: ModelStructure, indices: Collection[int], x_spec: Any) -> set[int]:
    """Return those of these trainable variables that only plain embedding layers read."""
    found = _only_looked_up(structure, {index: (index,) for index in indices}, x_spec)
    return set(found.variable_indices)


def plain_layers(
    structure: ModelStructure, variable_index: int
) -> tuple[keras.layers.Embedding, ...]:
    """Return the plain embedding layers whose table this trainable variable is."""
    return tuple(
        layer
        for layer in keras_adapter.all_layers(structure.model)
        if type(layer) is keras.layers.Embedding
        and layer.trainable_variables
        and layer.trainable_variables[0] is structure.trainable[variable_index]
        and len(layer.trainable_variables) == 1
        and layer.embeddings_regularizer is None
    )


def _only_looked_up(
    structure: ModelStructure, wanted: dict[int, tuple[int, ...]], x_spec: Any
) -> Lookups:
    candidates = []
    for index, bucket_indices in wanted.items():
        layers = plain_layers(structure, index)
        if layers:
            is_by_rows = index in structure.by_rows
            candidates.append(Table(bucket_indices, index, layers, 0, is_by_rows))
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
            Table(
                table.bucket_indices,
                table.variable_index,
                table.layers,
                num_calls,
                table.is_by_rows,
            )
            for table, gradient, num_calls in zip(
                lookups.tables, seen["gradients"], seen["calls"], strict=True
            )
            if gradient is None and num_calls > 0
        ]
    )


def _total(leaf: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(leaf, tf.float32))
