"""The parameter store on parameter servers: each server holds buckets, slots and a lock.

An update takes the lock of a server, skips step ids that this server has applied before, and runs
the same public `optimizer.apply` as every other mode. So no update is lost, none counts twice, and
momentum stays consistent, however many workers push at once and however often a step is re-run.
"""

import contextlib
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from kdist.distribute import server_values
from kdist.distribute.layout import BucketLayout
from kdist.distribute.optimizer import StoreOptimizer, all_finite, divide, inner_optimizer
from kdist.distribute.packets import Push
from kdist.distribute.server_apply import ServerUpdate, traced_record
from kdist.distribute.servers import (
    WINDOW,
    Server,
    create_servers,
    create_tallies,
    refuse_unsplittable,
)
from kdist.distribute.spilled import KeptTable
from kdist.distribute.step_types import AuxLayout
from kdist.distribute.store import unpack_states
from kdist.distribute.structure import ModelStructure

__all__ = ["WINDOW", "Server", "ServerStore"]

Scope = Callable[[], AbstractContextManager[Any]]


class ServerStore:
    """Buckets, optimizer clones and counters on the servers; the coordinator creates it once."""

    def __init__(
        self,
        structure: ModelStructure,
        layout: BucketLayout,
        aux: AuxLayout,
        devices: Sequence[str],
        *,
        scope: Scope = contextlib.nullcontext,
        max_staleness: int | None = None,
    ):
        """Create every variable on its server.

        Args:
            structure: The probed structure of the model.
            layout: The buckets, dealt to `len(devices)` servers.
            aux: The layout of the vector that rides with the gradients.
            devices: Device names of the servers, such as "/job:ps/replica:0/task:0/device:CPU:0".
            scope: Makes the context that variables are created in: a graph that a session will
                run, say. Functions are traced outside of it, since there is no other way to make
                Keras' code trace what it says: in a graph `==` compares tensors by identity.
            max_staleness: Most updates that may have been applied since a step began to read;
                what is older is refused. `None` for any.

        Raises:
            ConfigError: If the optimizer cannot be split over servers.
        """
        self.structure = structure
        self.layout = layout
        self.aux = aux
        self.num_model_reads = 0
        self.frozen_fingerprint: list[int] = []
        template = structure.model.optimizer
        inner = inner_optimizer(template)
        refuse_unsplittable(template, len(devices))
        self._scales_loss = inner is not template
        self._static_scale = inner.loss_scale_factor
        needs_all = len(devices) > 1 or layout.has_row_tables
        self._global_clipnorm = inner.global_clipnorm if needs_all else None
        changes = {"global_clipnorm": None} if self._global_clipnorm else {}
        self.max_staleness = max_staleness
        self.scope = scope
        with scope():
            self.servers = create_servers(structure, layout, aux, devices, changes)
            self.tallies = create_tallies(structure, aux, devices[0])
        self.states, self.sums = self.tallies.states, self.tallies.sums
        self.num_applied = self.tallies.num_applied
        self.evaluation_sums = self.tallies.evaluation_sums
        for index, server in enumerate(self.servers):
            server.apply_fn = self.update_of(index).traced()
        self._record_fn = traced_record(devices[0], self.tallies, aux)

    def update_of(self, server_index: int) -> ServerUpdate:
        """Return what a server does under its lock with what it is sent."""
        return ServerUpdate(
            self.servers[server_index],
            self.aux,
            scales_loss=self._scales_loss,
            tallies=self.tallies if server_index == 0 else None,
            max_staleness=self.max_staleness,
        )

    # inside a step, on a worker

    def read_buckets(self, leave_out: Collection[int] = ()) -> list[Any]:
        """Return the current buckets on the caller's device, in layout order.

        Args:
            leave_out: Buckets not to read; `()` stands in their place.
        """
        values: list[Any] = [()] * len(self.layout.buckets)
        for server in self.servers:
            for index, bucket in zip(server.bucket_indices, server.buckets, strict=True):
                if index in leave_out:
                    continue
                with tf.device(server.device):
                    value = tf.convert_to_tensor(bucket.value)
                values[index] = tf.identity(value)
        return values

    def look_up(self, bucket_index: int, rows: tf.Tensor) -> tf.Tensor:
        """Return rows of a table's piece, gathered on its server: `[len(rows), columns]`.

        Args:
            bucket_index: The bucket of the table, or of one piece of it.
            rows: int64 vector on the caller's device; rows of the piece.
        """
        server = self.servers[self.layout.buckets[bucket_index].server_index]
        table = server.buckets[server.bucket_indices.index(bucket_index)]
        with tf.device(server.device):
            found = tf.gather(table.value, tf.identity(rows))
        return tf.identity(found)

    def read_states(self) -> list[tf.Tensor]:
        """Return the current float states on the caller's device."""
        if not self.structure.float_states:
            return []
        with tf.device(self.servers[0].device):
            vector = tf.convert_to_tensor(self.states)
        return unpack_states(tf.identity(vector), self.structure.float_states)

    def read_loss_scale(self) -> tf.Tensor:
        """Return the factor for the loss, a float32 scalar on the caller's device."""
        if self._scales_loss:
            optimizer = self._first_optimizer().optimizer
            with tf.device(self.servers[0].device):
                scale = tf.convert_to_tensor(optimizer.dynamic_scale)
            return tf.identity(scale)
        return tf.constant(self._static_scale or 1.0, tf.float32)

    def read_version(self) -> tf.Tensor:
        """Return how many updates there are, an int64 scalar; read it before the values."""
        with tf.device(self.servers[0].device):
            version = tf.convert_to_tensor(self.num_applied)
        return tf.identity(version)

    def push(
        self,
        step_id: tf.Tensor,
        gradients: Sequence[Any],
        aux: tf.Tensor,
        loss_scale: tf.Tensor,
        *,
        version: Any,
        worker: Any,
    ) -> tf.Tensor:
        """Send one step's contribution to all servers, each under its lock.

        With `max_staleness` the first server decides, and the others are sent what it takes.

        Args:
            step_id: int64 scalar; a server that has applied it takes nothing.
            gradients: By bucket, in layout order, of the scaled loss.
            aux: The vector of `AuxLayout`.
            loss_scale: What `read_loss_scale` returned for this step.
            version: What `read_version` returned for this step.
            worker: Index of the worker.

        Returns:
            Whether the step is applied now, a bool scalar: it is not if it was too old.
        """
        gradients, finite = self.without_loss_scale(gradients, loss_scale)
        if self.global_clipnorm:
            gradients, _ = tf.clip_by_global_norm(list(gradients), self.global_clipnorm)

        def push_to(index: int) -> tf.Tensor:
            mine = [gradients[i] for i in self.servers[index].bucket_indices]
            return self.push_to(index, Push(step_id, finite, mine, aux, worker, version))

        def push_to_others() -> tf.Tensor:
            sent = [push_to(index) for index in range(1, len(self.servers))]
            with tf.control_dependencies(sent):
                return tf.constant(0)

        is_taken = push_to(0)
        if self.max_staleness is None:
            push_to_others()
        else:
            tf.cond(is_taken, push_to_others, lambda: tf.constant(0))
        return is_taken

    def without_loss_scale(
        self, gradients: Sequence[Any], loss_scale: tf.Tensor
    ) -> tuple[list[Any], tf.Tensor]:
        """Return gradients as `ServerUpdate.take` takes them, and whether none overflowed."""
        if not self._scales_loss:
            return list(gradients), tf.constant(True)
        finite = all_finite(gradients)
        return [divide(gradient, loss_scale) for gradient in gradients], finite

    @property
    def global_clipnorm(self) -> float | None:
        """Return the largest norm over all servers of what they take, where it is limited."""
        if not self._global_clipnorm:
            return None
        # The servers' optimizers divide by a static scale afterwards.
        return self._global_clipnorm * (self._static_scale or 1.0)

    def push_to(self, server_index: int, push: Push) -> tf.Tensor:
        """Send one server its part of a step; it takes the part under its lock, once.

        Returns:
            Whether the step is applied now, a bool scalar.
        """
        server = self.servers[server_index]
        if not server.bucket_indices and server_index != 0:
            return tf.constant(True)
        return tf.identity(self._locked(server, server.apply_fn, server.packets.pack(push)))

    @tf.autograph.experimental.do_not_convert
    def record_evaluation(self, evaluation_id: tf.Tensor, logged: tf.Tensor) -> None:
        """Add one evaluated batch to the evaluation's sums, once for each id."""
        self._locked(self.servers[0], self._record_fn, evaluation_id, logged)

    @staticmethod
    def _locked(server: Server, function: Callable[..., Any], *args: Any) -> Any:
        with tf.device(server.device):
            local = tf.nest.map_structure(tf.identity, args, expand_composites=True)
            return server.lock.execute(lambda: function(*local))

    # on the coordinator, between stretches of steps

    def write_to_model(self) -> None:
        """Give the model's variables the servers' values."""
        server_values.write_to_model(self)

    def write_states_to_model(self) -> None:
        """Give the model's non-trainable variables the servers' values."""
        server_values.write_states_to_model(self)

    def read_from_model(self) -> bool:
        """Take over what somebody wrote into the model; return whether anything differed."""
        self.num_model_reads += 1
        return server_values.read_from_model(self)

    @property
    def kept_tables(self) -> list[KeptTable]:
        """Return the tables whose values the model is never given."""
        return server_values.kept_tables(self)

    def take_from_chief(self, *, with_optimizer: bool = False) -> None:
        """The chief is the only task that runs the outer loop, and the servers hold its values."""

    @property
    def optimizers(self) -> list[StoreOptimizer]:
        """Return the clones of all servers that hold a bucket."""
        return [s.optimizer for s in self.servers if s.optimizer is not None]

    @property
    def num_updates(self) -> int:
        """Return the updates that reached the model, as the first server counts them."""
        return self._first_optimizer().num_updates

    def _first_optimizer(self) -> StoreOptimizer:
        return self.optimizers[0]
