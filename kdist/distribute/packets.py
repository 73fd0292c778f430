"""What a worker sends to one server: as few tensors as possible, since each is a message.

Step id, overflow flag, origin, all flat float32 gradients and (to the first server) the vector that
rides with them travel as one float32 vector; large tables and other dtypes follow as they are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from kdist.distribute.layout import Bucket

# A step id is sent as two exact float32 numbers: its multiples of 2**20, and the rest.
_ID_BASE = 1 << 20
_NUM_HEADER = 6


class Push(NamedTuple):
    """One step's contribution as a server sees it; `aux` is empty but on the first server.

    `version` is the number of updates that the first server had applied when the worker began to
    read, and `worker` the worker's index.
    """

    step_id: Any
    is_finite: Any
    gradients: list[Any]
    aux: Any
    worker: Any = 0
    version: Any = 0


class Packet(NamedTuple):
    """A push on its way: one float32 vector, and the gradients that do not fit into it."""

    vector: Any
    others: list[Any]


class PacketLayout:
    """Packs and unpacks the pushes to one server."""

    def __init__(self, buckets: Sequence[Bucket], num_aux: int):
        """Plan the vector.

        Args:
            buckets: The server's buckets.
            num_aux: Length of the vector that rides along; 0 for none.
        """
        self._buckets = tuple(buckets)
        self._num_aux = num_aux

    @property
    def spec(self) -> Packet:
        """Return the signature of a packet."""
        size = _NUM_HEADER + self._num_aux + sum(b.size for b in self._buckets if _rides(b))
        return Packet(
            tf.TensorSpec([size], tf.float32),
            [gradient_spec(b) for b in self._buckets if not _rides(b)],
        )

    def pack(self, push: Push) -> Packet:
        """Return a push as it travels."""
        numbers = [*_split(push.step_id), tf.cast(push.is_finite, tf.int64)]
        numbers += [tf.cast(push.worker, tf.int64), *_split(push.version)]
        header = tf.cast(tf.stack(numbers), tf.float32)
        flat = [g for b, g in zip(self._buckets, push.gradients, strict=True) if _rides(b)]
        others = [g for b, g in zip(self._buckets, push.gradients, strict=True) if not _rides(b)]
        aux = [push.aux] if self._num_aux else []
        return Packet(tf.concat([header, *aux, *flat], 0), others)

    def unpack(self, packet: Packet) -> Push:
        """Return a push from what arrived."""
        sizes = [b.size for b in self._buckets if _rides(b)]
        header, aux, *flat = tf.split(packet.vector, [_NUM_HEADER, self._num_aux, *sizes])
        high, low, is_finite, worker, *version = tf.unstack(tf.cast(header, tf.int64))
        riding, others = iter(flat), iter(packet.others)
        gradients = [next(riding) if _rides(b) else next(others) for b in self._buckets]
        is_finite = tf.not_equal(is_finite, 0)
        return Push(_joined(high, low), is_finite, gradients, aux, worker, _joined(*version))


def _split(number: Any) -> tuple[Any, Any]:
    number = tf.cast(number, tf.int64)
    return number // _ID_BASE, number % _ID_BASE


def _joined(high: Any, low: Any) -> Any:
    return high * _ID_BASE + low


def _rides(bucket: Bucket) -> bool:
    return bucket.is_flat and bucket.dtype == "float32"


def gradient_spec(bucket: Bucket) -> Any:
    """Return the signature of a bucket's gradient."""
    if bucket.has_sparse_gradient:
        return tf.IndexedSlicesSpec(
            bucket.shape, bucket.dtype, tf.int64, dense_shape_dtype=tf.int64
        )
    return tf.TensorSpec(bucket.shape, bucket.dtype)
