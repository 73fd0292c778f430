"""What a worker sends to one server: as few tensors as possible, since each is a message.

Step id, overflow flag, origin, all flat float32 gradients and (to the first server) the vector that
rides with them travel as one float32 vector; large tables and other dtypes follow as they are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from kdist.distribute.buckets.layout import Bucket

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
        size = _NUM_HEADER + self._num_aux + sum(b.size for b in self._buckets if rides(b))
        return Packet(
            tf.TensorSpec([size], tf.float32),
            [gradient_spec(b) for b in self._buckets if not rides(b)],
        )

    def pack(self, push: Push) -> Packet:
        """Return a push as it travels."""
        numbers = [*_split(push.step_id), tf.cast(push.is_finite, tf.int64)]
        numbers += [tf.cast(push.worker, tf.int64), *_split(push.version)]
        header = tf.cast(tf.stack(numbers), tf.float32)
        flat = [g for b, g in zip(self._buckets, push.gradients, strict=True) if rides(b)]
        others = [g for b, g in zip(self._buckets, push.gradients, strict=True) if not rides(b)]
        aux = [push.aux] if self._num_aux else []
        return Packet(tf.concat([*flat, *aux, header], 0), others)

    @staticmethod
    def origin(packet: Packet) -> Push:
        """Return what a packet's header says, without gradients."""
        header = tf.cast(packet.vector[-_NUM_HEADER:], tf.int64)
        high, low, is_finite, worker, *version = tf.unstack(header, _NUM_HEADER)
        is_finite = tf.not_equal(is_finite, 0)
        return Push(_joined(high, low), is_finite, [], (), worker, _joined(*version))

    def unpack(self, packet: Packet) -> Push:
        """Return a push from what arrived."""
        sizes = [b.size for b in self._buckets if rides(b)]
        *flat, aux, header = tf.split(packet.vector, [*sizes, self._num_aux, _NUM_HEADER])
        high, low, is_finite, worker, *version = tf.unstack(tf.cast(header, tf.int64))
        riding, others = iter(flat), iter(packet.others)
        gradients = [next(riding) if rides(b) else next(others) for b in self._buckets]
        is_finite = tf.not_equal(is_finite, 0)
        return Push(_joined(high, low), is_finite, gradients, aux, worker, _joined(*version))


class Pulled(NamedTuple):
    """What a step reads of the store: buckets in layout order, and what the first server has.

    `loss_scale` is a float32 scalar, `version` the int64 number of updates that the first server
    had applied.
    """

    buckets: list[Any]
    float_states: list[Any]
    loss_scale: Any
    version: Any


class RiderLayout:
    """Packs what the first server sends beside buckets: version, loss scale and states."""

    def __init__(self, num_states: int):
        """Plan the vector: float32 `[size]`."""
        self._num_states = num_states
        self.size = 3 + num_states

    @staticmethod
    def pack(version: Any, loss_scale: Any, states: Any) -> tf.Tensor:
        """Return the vector; `states` is a float32 vector."""
        numbers = tf.stack([*_split(version)])
        return tf.concat([tf.cast(numbers, tf.float32), [loss_scale], states], 0)

    def unpack(self, vector: tf.Tensor) -> tuple[Any, Any, Any]:
        """Return version, loss scale and states."""
        numbers, scale, states = tf.split(vector, [2, 1, self._num_states])
        version = _joined(*tf.unstack(tf.cast(numbers, tf.int64)))
        return version, scale[0], states


def _split(number: Any) -> tuple[Any, Any]:
    number = tf.cast(number, tf.int64)
    return number // _ID_BASE, number % _ID_BASE


def _joined(high: Any, low: Any) -> Any:
    return high * _ID_BASE + low


def rides(bucket: Bucket) -> bool:
    """Return whether a bucket's values and gradients travel in a float32 vector with others."""
    return bucket.is_flat and bucket.dtype == "float32"


def gradient_spec(bucket: Bucket) -> Any:
    """Return the signature of a bucket's gradient."""
    if bucket.has_sparse_gradient:
        return tf.IndexedSlicesSpec(
            bucket.shape, bucket.dtype, tf.int64, dense_shape_dtype=tf.int64
        )
    return tf.TensorSpec(bucket.shape, bucket.dtype)
