"""Packets with rows of tables, joined: each tensor on its way is a message of its own.

A step reads rows of several tables from a server, and sends it gradients of several. All ids that
go to a server travel as one tensor, and so do all rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from kdist.distribute.buckets.layout import Bucket
from kdist.distribute.servers.packets import Packet, PacketLayout, Push, rides


class Parcel(NamedTuple):
    """A packet: its vector with the rows of tables behind it, counts and ids, other gradients."""

    floats: Any
    ids: list[Any]
    others: list[Any]


class ParcelLayout:
    """Packs and unpacks the pushes to one server."""

    def __init__(self, packets: PacketLayout, buckets: Sequence[Bucket]):
        """Plan the parcel.

        Args:
            packets: Packs what has a fixed size.
            buckets: The server's buckets.
        """
        self._packets = packets
        self._others = [bucket for bucket in buckets if not rides(bucket)]
        self._tables = [bucket for bucket in self._others if _joins(bucket)]

    @property
    def spec(self) -> Parcel:
        """Return the signature of a parcel."""
        packet = self._packets.spec
        ids = [tf.TensorSpec([None], tf.int64)] if self._tables else []
        floats = tf.TensorSpec([None], tf.float32) if self._tables else packet.vector
        return Parcel(floats, ids, self._without_tables(packet.others))

    def pack(self, push: Push) -> Parcel:
        """Return a push as it travels."""
        packet = self._packets.pack(push)
        if not self._tables:
            return Parcel(packet.vector, [], packet.others)
        tables = [
            gradient
            for bucket, gradient in zip(self._others, packet.others, strict=True)
            if _joins(bucket)
        ]
        floats = [tf.reshape(gradient.values, [-1]) for gradient in tables]
        ids = join_ids([gradient.indices for gradient in tables])
        others = self._without_tables(packet.others)
        return Parcel(tf.concat([packet.vector, *floats], 0), [ids], others)

    def unpack(self, parcel: Parcel) -> Push:
        """Return a push from what arrived."""
        if not self._tables:
            return self._packets.unpack(Packet(parcel.floats, parcel.others))
        [joined] = parcel.ids
        ids = split_ids_again(joined, len(self._tables))
        num_fixed = self._packets.spec.vector.shape[0]
        rows = split_rows(parcel.floats[num_fixed:], ids, self._tables)
        tables = iter(
            tf.IndexedSlices(values, indices, tf.constant(bucket.shape, tf.int64))
            for values, indices, bucket in zip(rows, ids, self._tables, strict=True)
        )
        others = iter(parcel.others)
        whole = [next(tables) if _joins(bucket) else next(others) for bucket in self._others]
        vector = tf.ensure_shape(parcel.floats[:num_fixed], [num_fixed])
        return self._packets.unpack(Packet(vector, whole))

    def _without_tables(self, others: Sequence[Any]) -> list[Any]:
        return [o for b, o in zip(self._others, others, strict=True) if not _joins(b)]


def join_ids(ids: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return several id vectors as one: how many each has, then all of them."""
    counts = tf.stack([tf.size(each, out_type=tf.int64) for each in ids])
    return tf.concat([counts, *ids], 0)


def split_ids_again(joined: tf.Tensor, num: int) -> list[tf.Tensor]:
    """Return the id vectors that `join_ids` joined."""
    return tf.split(joined[num:], joined[:num], num=num)


def split_rows(
    flat: tf.Tensor, ids: Sequence[tf.Tensor], buckets: Sequence[Bucket]
) -> list[tf.Tensor]:
    """Return rows by table from all of them, flattened one after the other."""
    columns = [bucket.shape[1] for bucket in buckets]
    sizes = [tf.size(each) * num for each, num in zip(ids, columns, strict=True)]
    parts = tf.split(flat, tf.stack(sizes), num=len(sizes))
    return [tf.reshape(part, [-1, num]) for part, num in zip(parts, columns, strict=True)]


def _joins(bucket: Bucket) -> bool:
    return bucket.has_sparse_gradient and bucket.dtype == "float32" and len(bucket.shape) == 2
