"""Variables in pieces, as graph code: their values put together, their gradients taken apart."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kdist.distribute.buckets.layout import Bucket, Rows


def join_rows(parts: Sequence[tuple[Rows, tf.Tensor]]) -> tf.Tensor:
    """Return a variable whose rows lie in these parts."""
    if all(rows.step == 1 for rows, _ in parts):
        return tf.concat([value for _, value in sorted(parts, key=lambda part: part[0].first)], 0)
    places = [tf.range(rows.first, rows.stop, rows.step) for rows, _ in parts]
    return tf.dynamic_stitch(places, [value for _, value in parts])


def gradient_of_piece(gradient: Any, bucket: Bucket) -> Any:
    """Return the part of a variable's gradient that one bucket of its own is sent.

    Args:
        gradient: Of the whole variable; `None` counts as zero.
        bucket: Holds the variable, or some of its rows.
    """
    [member] = bucket.members
    if gradient is None:
        return tf.zeros(member.shape, bucket.dtype)
    if not bucket.has_sparse_gradient:
        gradient = tf.convert_to_tensor(gradient)
        return gradient if member.rows is None else gradient[member.rows.as_slice]
    slices = as_slices(gradient, tf.TensorSpec(member.shape, bucket.dtype))
    if member.rows is None:
        return slices
    assert slices.indices is not None
    first, step = member.rows.first, member.rows.step
    is_here = tf.equal(tf.math.floormod(slices.indices, step), first)
    return tf.IndexedSlices(
        tf.boolean_mask(slices.values, is_here),
        tf.boolean_mask(slices.indices, is_here) // step,
        slices.dense_shape,
    )


def as_slices(gradient: Any, like: Any) -> tf.IndexedSlices:
    """Return a gradient as rows with int64 ids; `like` has the shape of what it belongs to."""
    shape = tf.constant(tuple(like.shape), tf.int64)
    if gradient is None:
        no_rows = tf.zeros([0, *tuple(like.shape)[1:]], like.dtype)
        return tf.IndexedSlices(no_rows, tf.zeros([0], tf.int64), shape)
    return tf.IndexedSlices(gradient.values, tf.cast(gradient.indices, tf.int64), shape)


def split_ids(ids: tf.Tensor, num_pieces: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Deal row ids to the pieces of a table: id `i` is row `i // num_pieces` of piece `i % ...`.

    Returns:
        By piece, the positions in `ids` (int32), and the rows of the piece (int64).
    """
    if num_pieces == 1:
        return [tf.range(tf.size(ids))], [ids]
    piece = tf.cast(tf.math.floormod(ids, num_pieces), tf.int32)
    positions = tf.dynamic_partition(tf.range(tf.size(ids)), piece, num_pieces)
    rows = tf.dynamic_partition(ids // num_pieces, piece, num_pieces)
    return positions, rows
