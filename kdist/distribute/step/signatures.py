"""What goes into the compute of a step: its signature, and the seeds of its random layers."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.model.lookups import Lookups
from kdist.distribute.model.step_types import NO_LOOKUPS, Share, StepValues
from kdist.distribute.model.structure import ModelStructure

_fold_in: Any = tf.random.experimental.stateless_fold_in  # pyright: ignore


def step_seeds(structure: ModelStructure, step_index: tf.Tensor, replica: Any) -> list[tf.Tensor]:
    """Return a seed for each generator: another one for every step and replica, reproducible."""
    seeds = []
    for variable, value in zip(structure.seeds, structure.seed_values, strict=True):
        initial = tf.constant(value.astype(np.int64).astype(np.int32))
        seed = _fold_in(initial, tf.cast(step_index, tf.int32))
        seed = _fold_in(seed, tf.cast(replica, tf.int32))
        seeds.append(tf.cast(tf.bitcast(seed, tf.uint32), variable.dtype))
    return seeds


def value_specs(
    structure: ModelStructure, layout: BucketLayout, lookups: Lookups = NO_LOOKUPS
) -> StepValues:
    """Return the signature of a forward pass's values."""

    def specs(variables: list[keras.Variable]) -> list[Any]:
        return [tf.TensorSpec(v.shape, v.dtype) for v in variables]

    return StepValues(
        buckets=[
            ()
            if index in lookups.left_out
            else tf.TensorSpec([None, b.members[0].shape[1]], b.dtype)
            if index in lookups.bucket_indices
            else tf.TensorSpec(b.shape, b.dtype)
            for index, b in enumerate(layout.buckets)
        ],
        float_states=specs(structure.float_states),
        int_states=specs(structure.int_states),
        seeds=specs(structure.seeds),
        frozen=specs(structure.frozen),
        positions=[[tf.TensorSpec([None], tf.int32)] * table.num_calls for table in lookups.tables],
    )


def rows_per_share(rows_per_batch: int | None, num_shares: int) -> int | None:
    """Return the rows that every share of every batch has, `None` if they differ."""
    if rows_per_batch is None or rows_per_batch % num_shares:
        return None
    return rows_per_batch // num_shares


def share_specs(
    structure: ModelStructure, batch_spec: tuple[Any, Any, Any], num_rows: int | None = None
) -> Share:
    """Return the signature of a share of a batch.

    Args:
        structure: The probed structure of the model.
        batch_spec: `(x, y, sample_weight)` nests of `tf.TensorSpec`.
        num_rows: Rows of the share, if it is always as many. TensorFlow then knows all shapes of
            the model, and leaves out what would ask for them at each step: a fifth of an LSTM.
    """
    x, y, sample_weight = batch_spec
    if num_rows is not None:
        x, y, sample_weight = tf.nest.map_structure(
            lambda spec: tf.TensorSpec(_with_rows(spec.shape, num_rows), spec.dtype), batch_spec
        )
    scalar = tf.TensorSpec([], tf.float32)
    terms = tf.TensorSpec([len(structure.terms)], tf.float32)
    return Share(x, y, sample_weight, scalar, scalar, scalar, scalar, terms)


def with_num_rows(share: Share, num_rows: int | None) -> Share:
    """Return a share whose tensors say how many rows they have, if it is always as many."""
    if num_rows is None:
        return share
    x, y, sample_weight = tf.nest.map_structure(
        lambda leaf: tf.ensure_shape(leaf, _with_rows(leaf.shape, num_rows)), share[:3]
    )
    return share._replace(x=x, y=y, sample_weight=sample_weight)


def _with_rows(shape: tf.TensorShape, num_rows: int) -> tf.TensorShape:
    if shape.rank is None:
        return shape
    return tf.TensorShape([num_rows, *shape[1:]])
