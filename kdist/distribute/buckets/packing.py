"""The way between buckets and variables inside a step, as graph code."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kdist.distribute.buckets.layout import BucketLayout, Rows
from kdist.distribute.buckets.pieces import as_slices, gradient_of_piece, join_rows
from kdist.distribute.model.lookups import Lookups
from kdist.distribute.model.structure import ModelStructure


class BucketPacking:
    """Takes buckets apart into variables, and puts gradients together into buckets."""

    def __init__(self, structure: ModelStructure, layout: BucketLayout, lookups: Lookups):
        """Hold what says where a variable is.

        Args:
            structure: The model taken apart.
            layout: The buckets.
            lookups: Tables of which a step is given only the rows that it reads.
        """
        self._trainable = structure.trainable
        self._layout = layout
        self._lookups = lookups

    def unpack(self, buckets: Sequence[Any]) -> list[tf.Tensor]:
        """Return the trainable variables' values from the buckets' values."""
        parameters: list[Any] = [None] * len(self._trainable)
        pieces: dict[int, list[tuple[Rows, tf.Tensor]]] = {}
        for index, (bucket, value) in enumerate(zip(self._layout.buckets, buckets, strict=True)):
            if index in self._lookups.left_out:
                continue
            if not bucket.is_flat:
                [member] = bucket.members
                if member.rows is None or index in self._lookups.bucket_indices:
                    parameters[member.variable_index] = value
                else:
                    pieces.setdefault(member.variable_index, []).append((member.rows, value))
                continue
            parts = tf.split(value, [member.size for member in bucket.members])
            for member, part in zip(bucket.members, parts, strict=True):
                parameters[member.variable_index] = tf.reshape(part, member.shape)
        for variable_index, parts in pieces.items():
            parameters[variable_index] = join_rows(parts)
        return parameters

    def pack(self, gradients: Sequence[Any]) -> list[Any]:
        """Return gradients by bucket; a variable without a gradient counts as zero.

        That of a looked-up table counts the rows of this step, and stands at its first bucket; its
        other buckets have `()`.
        """
        packed: list[Any] = []
        for index, bucket in enumerate(self._layout.buckets):
            parts = [gradients[member.variable_index] for member in bucket.members]
            if index in self._lookups.left_out:
                packed.append(())
            elif index in self._lookups.bucket_indices:
                table = self._trainable[bucket.members[0].variable_index]
                packed.append(as_slices(parts[0], table))
            elif not bucket.is_flat:
                packed.append(gradient_of_piece(parts[0], bucket))
            else:
                flat = [
                    tf.zeros([member.size], bucket.dtype)
                    if part is None
                    else tf.reshape(part, [member.size])
                    for member, part in zip(bucket.members, parts, strict=True)
                ]
                packed.append(tf.concat(flat, 0))
        return packed
