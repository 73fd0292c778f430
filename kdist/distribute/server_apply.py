"""What a parameter server does with what it is sent, as graph code; run it under the server's lock.

A server skips step ids that it has applied before, and runs the same public `optimizer.apply` as
every other mode. So no update counts twice, and momentum stays consistent.
"""

from typing import Any

import tensorflow as tf

from kdist.distribute.packets import Packet, Push
from kdist.distribute.servers import WINDOW, Server, Tallies
from kdist.distribute.step_types import AuxLayout


class ServerUpdate:
    """The updates of one server; the first one has tallies as well."""

    def __init__(
        self, server: Server, aux: AuxLayout, *, scales_loss: bool, tallies: Tallies | None
    ):
        """Hold what an update needs.

        Args:
            server: The server.
            aux: The layout of the vector that the first server is sent.
            scales_loss: Whether a loss scale moves with the updates.
            tallies: Of the first server; `None` for the others.
        """
        self._server = server
        self._aux = aux
        self._scales_loss = scales_loss
        self._tallies = tallies

    def traced(self) -> Any:
        """Return `apply` as a concrete function of a packet."""
        return tf.function(self.apply, autograph=False).get_concrete_function(
            self._server.packets.spec
        )

    def apply(self, packet: Packet) -> tf.Tensor:
        """Take a packet unless its step id has been applied; call it under the lock."""
        server = self._server
        with tf.device(server.device):
            push = server.packets.unpack(packet)
            slot = push.step_id % WINDOW
            fresh = tf.not_equal(tf.gather(server.applied, slot), push.step_id)
            tf.cond(fresh, lambda: self.take(push), _nothing)
            server.applied.scatter_nd_update([[slot]], [push.step_id])
            return tf.constant(0)

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
            self._tallies.num_applied.assign_add(1)
            self._tallies.sums.assign_add(tf.cast(push.aux[:num_logged], tf.float64))
            if self._aux.num_states:
                self._tallies.states.assign_add(push.aux[num_logged:])
        return tf.constant(0)

    def _update(self, gradients: list[Any]) -> tf.Tensor:
        assert self._server.optimizer is not None
        self._server.optimizer.update(gradients)
        return tf.constant(0)


def traced_record(device: str, tallies: Tallies, aux: AuxLayout) -> Any:
    """Return the function that adds one evaluated batch to the tallies, once for each id."""

    def record(evaluation_id: Any, logged: Any) -> tf.Tensor:
        with tf.device(device):
            slot = evaluation_id % WINDOW
            fresh = tf.not_equal(tf.gather(tallies.evaluated, slot), evaluation_id)
            weight = tf.cast(fresh, tf.float64)
            tallies.evaluation_sums.assign_add(tf.cast(logged, tf.float64) * weight)
            tallies.evaluated.scatter_nd_update([[slot]], [evaluation_id])
            return tf.constant(0)

    return tf.function(record, autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.int64), tf.TensorSpec([aux.num_logged], tf.float32)
    )


def _nothing() -> tf.Tensor:
    return tf.constant(0)
