"""What a parameter server does with what it is sent, as graph code; run it under the server's lock.

A server skips step ids that it has applied before, and runs the same public `optimizer.apply` as
every other mode. So no update counts twice, and momentum stays consistent.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute.model.step_types import AuxLayout
from kdist.distribute.servers.packets import Push
from kdist.distribute.servers.parcels import Parcel
from kdist.distribute.servers.servers import WINDOW, Server, Tallies


class ServerUpdate:
    """The updates of one server; the first one has tallies as well."""

    def __init__(
        self,
        server: Server,
        aux: AuxLayout,
        *,
        scales_loss: bool,
        tallies: Tallies | None,
        max_staleness: int | None = None,
    ):
        """Hold what an update needs.

        Args:
            server: The server.
            aux: The layout of the vector that the first server is sent.
            scales_loss: Whether a loss scale moves with the updates.
            tallies: Of the first server; `None` for the others.
            max_staleness: Most updates since a step began to read; the first server refuses what
                is older.
        """
        self._server = server
        self._aux = aux
        self._scales_loss = scales_loss
        self._tallies = tallies
        self._max_staleness = max_staleness

    def traced(self) -> Any:
        """Return `apply` under the lock, as a concrete function of a packet."""
        return traced_under_lock(self._server, self.apply, self._server.parcels.spec)

    def apply(self, packet: Parcel) -> tf.Tensor:
        """Take a packet unless its step id has been applied; call it under the lock.

        Returns:
            Whether its step has been applied now, a bool scalar: it is not if it was too old.
        """
        server = self._server
        with tf.device(server.device):
            push = server.parcels.unpack(packet)
            slot = push.step_id % WINDOW
            # Ids only grow: what comes after a later id of its slot has been applied long ago.
            fresh = tf.less(tf.gather(server.applied, slot), push.step_id)
            if self._tallies is None or self._max_staleness is None:
                tf.cond(fresh, lambda: self._take_and_count(push), _nothing)
                last = tf.maximum(tf.gather(server.applied, slot), push.step_id)
                server.applied.scatter_nd_update([[slot]], [last])
                return tf.constant(True)
            too_old = self._tallies.num_applied - push.version > self._max_staleness
            is_refused = tf.logical_and(fresh, too_old)
            is_new = tf.logical_and(fresh, tf.logical_not(too_old))
            tf.cond(is_new, lambda: self._take_and_count(push), _nothing)
            tf.cond(is_refused, self._tallies.contributions.drop, _nothing)
            last = tf.where(is_new, push.step_id, tf.gather(server.applied, slot))
            server.applied.scatter_nd_update([[slot]], [last])
            return tf.logical_not(is_refused)

    def _take_and_count(self, push: Push) -> tf.Tensor:
        if self._tallies is not None:
            update = tf.convert_to_tensor(self._tallies.num_applied)
            self._tallies.contributions.take(
                update=update,
                unit=push.step_id,
                worker=push.worker,
                staleness=update - push.version,
            )
        return self.take(push)

    def take(self, push: Push) -> tf.Tensor:
        """Update buckets, slots, counters and tallies once, whatever the step id says.

        Call it under the lock; gradients are without loss scale.
        """
        optimizer = self._server.optimizer
        if optimizer is not None:
            if self._scales_loss:
                tf.cond(push.is_finite, lambda: self._update(push.gradients), _nothing)
                optimizer.move_loss_scale(push.is_finite)
            else:
                self._update(push.gradients)
        if self._tallies is not None:
            num_logged = self._aux.num_logged
            # Readers take no lock: the count must never be ahead of the values.
            values = [_touched(bucket) for bucket in self._server.buckets]
            with tf.control_dependencies(values):
                self._tallies.num_applied.assign_add(1)
            self._tallies.sums.assign_add(tf.cast(push.aux[:num_logged], tf.float64))
            if self._aux.num_states:
                self._tallies.states.assign_add(push.aux[num_logged:])
        return tf.constant(0)

    def _update(self, gradients: list[Any]) -> tf.Tensor:
        assert self._server.optimizer is not None
        self._server.optimizer.update(gradients)
        return tf.constant(0)


def traced_record(server: Server, tallies: Tallies, aux: AuxLayout) -> Any:
    """Return the function that adds one evaluated batch to the tallies, once for each id."""

    def record(evaluation_id: Any, logged: Any) -> tf.Tensor:
        slot = evaluation_id % WINDOW
        fresh = tf.not_equal(tf.gather(tallies.evaluated, slot), evaluation_id)
        weight = tf.cast(fresh, tf.float64)
        tallies.evaluation_sums.assign_add(tf.cast(logged, tf.float64) * weight)
        tallies.evaluated.scatter_nd_update([[slot]], [evaluation_id])
        return tf.constant(0)

    logged = tf.TensorSpec([aux.num_logged], tf.float32)
    return traced_under_lock(server, record, tf.TensorSpec([], tf.int64), logged)


def traced_on_server(server: Server, function: Callable[..., Any], *specs: Any) -> Any:
    """Return a concrete function that runs `function` on a server."""

    def on_server(*args: Any) -> Any:
        with tf.device(server.device):
            return function(*args)

    return tf.function(on_server, autograph=False).get_concrete_function(*specs)


def traced_as_one_call(server: Server, function: Callable[..., Any], *specs: Any) -> Any:
    """Return the same, kept whole: nothing of it is placed anywhere else.

    TensorFlow puts a called function's operations into the graph of its caller, and those without a
    device, such as the ends of a loop, on the caller's. Each of them is a message then, there and
    back (measured: 50 messages a step of two shares, 16 this way).
    """

    def on_server(*args: Any) -> Any:
        with tf.device(server.device):
            return function(*args)

    attributes = {"_noinline": True}
    traced = tf.function(on_server, autograph=False, experimental_attributes=attributes)
    return traced.get_concrete_function(*specs)


def traced_under_lock(server: Server, function: Callable[..., Any], *specs: Any) -> Any:
    """Return a concrete function that runs `function` on a server, under its lock.

    `function` is one of its own, since a critical section waits for what it returns, and only a
    call returns when all of its assignments are done. And the lock is taken within a function:
    steps of one graph would take the locks of all servers one after the other otherwise, with a
    message from each server to the next.
    """
    inner = traced_on_server(server, function, *specs)

    def locked(*args: Any) -> Any:
        with tf.device(server.device):
            return server.lock.execute(lambda: inner(*args))

    return tf.function(locked, autograph=False).get_concrete_function(*specs)


def _touched(bucket: keras.Variable) -> tf.Tensor:
    """Return something of a bucket's current value: its first row.

    Reading a large variable whole would copy it, after an update of some of its rows.
    """
    value: Any = bucket.value
    return tf.gather(value, [0]) if value.shape.rank else tf.convert_to_tensor(value)


def _nothing() -> tf.Tensor:
    return tf.constant(0)
