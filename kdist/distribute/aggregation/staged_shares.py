"""Shares of a step on one server: kept until it is known which ones count, then applied as one.

A share is staged before it is offered to the first server, which decides for all servers. What is
staged but not accepted is never read. So all servers apply the same N shares, whoever is lost.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kdist.distribute.buckets.layout import Bucket
from kdist.distribute.servers.packets import Packet, PacketLayout, Push
from kdist.distribute.servers.server_apply import ServerUpdate
from kdist.distribute.servers.servers import Server
from kdist.distribute.store.row_rules import sum_repeated


class StagedShares:
    """One place for each replica, and the version of the parameters; used under the lock."""

    def __init__(
        self,
        server: Server,
        buckets: Sequence[Bucket],
        update: ServerUpdate,
        *,
        num_logged: int,
        num_states: int,
        num_shares: int,
        num_replicas: int,
        batch_size: int,
        global_clipnorm: float | None,
    ):
        """Create the variables on the server.

        Args:
            server: The server.
            buckets: Its buckets.
            update: What it does with a step.
            num_logged: Length of the part of the vector that rides with the gradients which is
                added up; its first element is the number of rows of a share.
            num_states: Length of its other part, which is averaged over rows.
            num_shares: Shares of a step.
            num_replicas: Places.
            batch_size: The rows that gradients are scaled for.
            global_clipnorm: The largest norm of a gradient over all servers; `None` for any.
        """
        self.server = server
        self._buckets = tuple(buckets)
        self.packets = PacketLayout(buckets, num_logged + num_states)
        self._update = update
        self._num_logged = num_logged
        self._num_shares = num_shares
        self._batch_size = batch_size
        self._global_clipnorm = global_clipnorm
        spec = self.packets.spec
        with tf.device(server.device):
            self._vectors = tf.Variable(
                tf.zeros([num_replicas, *spec.vector.shape]), trainable=False
            )
            self._others = [_Places(one, num_replicas) for one in spec.others]
            self._tickets = tf.Variable(tf.zeros([num_replicas], tf.int64), trainable=False)
            self.version = tf.Variable(tf.constant(0, tf.int64), trainable=False)
            self._square = tf.Variable(tf.zeros([]), trainable=False)

    def stage(self, replica: Any, ticket: Any, packet: Packet) -> tf.Tensor:
        """Keep a replica's share; what came first under a ticket, or under a later one, stays."""

        def keep() -> tf.Tensor:
            self._tickets.scatter_nd_update([[replica]], [ticket])
            self._vectors.scatter_nd_update([[replica]], [packet.vector])
            for places, value in zip(self._others, packet.others, strict=True):
                places.write(replica, value)
            return tf.constant(0)

        return tf.cond(ticket > tf.gather(self._tickets, replica), keep, _nothing)

    def square(self, of_step: Any) -> tf.Tensor:
        """Return this server's part of the squared norm of the step before, a float32 scalar.

        Args:
            of_step: int64 `[1 + num_shares]`: the step that the caller is about to read parameters
                for, and the replicas whose shares make the step before.
        """
        step, replicas = of_step[0], of_step[1:]

        def measure() -> tf.Tensor:
            push = self._sum(replicas)
            squares = [tf.reduce_sum(tf.square(_dense(g))) for g in push.gradients]
            total = tf.add_n([tf.cast(s, tf.float32) for s in squares]) if squares else tf.zeros([])
            self._square.assign(total)
            return tf.constant(0)

        tf.cond(tf.equal(self.version, step - 1), measure, _nothing)
        return tf.convert_to_tensor(self._square)

    def advance(self, of_step: Any, square: Any) -> tf.Tensor:
        """Apply the step before, unless that was done; see `square`.

        Args:
            of_step: As in `square`.
            square: The squared norm over all servers, where gradients are clipped by it.
        """
        step, replicas = of_step[0], of_step[1:]

        def apply() -> tf.Tensor:
            push = self._sum(replicas)
            if self._global_clipnorm is not None:
                norm = tf.sqrt(square)
                factor = self._global_clipnorm / tf.maximum(norm, self._global_clipnorm)
                push = push._replace(gradients=[_times(g, factor) for g in push.gradients])
            self._update.take(push)
            self.version.assign(step)
            return tf.constant(0)

        return tf.cond(tf.equal(self.version, step - 1), apply, _nothing)

    def _sum(self, replicas: Any) -> Push:
        """Return the mean of the shares over their rows, as one push."""
        pushes = [self._read(replica) for replica in tf.unstack(replicas, self._num_shares)]
        aux = tf.add_n([push.aux for push in pushes])
        factor = tf.math.divide_no_nan(tf.cast(self._batch_size, tf.float32), aux[0])
        gradients = [
            _times(sum_repeated(_total(parts)) if bucket.is_by_rows else _total(parts), factor)
            for bucket, *parts in zip(self._buckets, *(p.gradients for p in pushes), strict=True)
        ]
        is_finite = tf.reduce_all([push.is_finite for push in pushes])
        logged, states = aux[: self._num_logged], aux[self._num_logged :]
        aux = tf.concat([logged, states * factor], 0)
        return Push(tf.constant(0, tf.int64), is_finite, gradients, aux)

    def _read(self, replica: Any) -> Push:
        vector = tf.gather(self._vectors, replica)
        return self.packets.unpack(
            Packet(vector, [places.read(replica) for places in self._others])
        )


class _Places:
    """What replicas staged of one gradient that travels by itself: a tensor, or rows with ids."""

    def __init__(self, spec: Any, num_replicas: int):
        self._spec = spec
        self._parts = tf.nest.flatten(spec, expand_composites=True)
        self._is_sparse = isinstance(spec, tf.IndexedSlicesSpec)
        if not self._is_sparse:
            self._dense = tf.Variable(
                tf.zeros([num_replicas, *spec.shape], spec.dtype), trainable=False
            )
            return
        self._rows = [
            [_grown_from_nothing(part) for part in self._parts] for _ in range(num_replicas)
        ]

    def write(self, replica: Any, value: Any) -> None:
        if not self._is_sparse:
            self._dense.scatter_nd_update([[replica]], [value])
            return

        def writer(variables: Sequence[tf.Variable]) -> Any:
            def write() -> tf.Tensor:
                flat = tf.nest.flatten(value, expand_composites=True)
                for variable, part in zip(variables, flat, strict=True):
                    variable.assign(part)
                return tf.constant(0)

            return write

        tf.switch_case(tf.cast(replica, tf.int32), [writer(v) for v in self._rows])

    def read(self, replica: Any) -> Any:
        if not self._is_sparse:
            return tf.gather(self._dense, replica)

        def reader(variables: Sequence[tf.Variable]) -> Any:
            return lambda: [tf.convert_to_tensor(variable) for variable in variables]

        flat: Any = tf.switch_case(tf.cast(replica, tf.int32), [reader(v) for v in self._rows])
        flat = [tf.ensure_shape(v, s.shape) for v, s in zip(flat, self._parts, strict=True)]
        return tf.nest.pack_sequence_as(self._spec, flat, expand_composites=True)


def _grown_from_nothing(spec: tf.TensorSpec) -> tf.Variable:
    """Return a variable for tensors of a spec whose first axis has any length.

    Its shape is left open: with a shape known in part, TensorFlow 2.21 aborts on another task.
    """
    first = tf.zeros([size or 0 for size in spec.shape.as_list()], spec.dtype)
    any_shape: Any = None
    return tf.Variable(first, shape=tf.TensorShape(any_shape), trainable=False)


def _total(parts: Sequence[Any]) -> Any:
    if not isinstance(parts[0], tf.IndexedSlices):
        return tf.add_n(list(parts))
    return tf.IndexedSlices(
        tf.concat([part.values for part in parts], 0),
        tf.concat([part.indices for part in parts], 0),
        parts[0].dense_shape,
    )


def _times(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def _dense(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _nothing() -> tf.Tensor:
    return tf.constant(0)
