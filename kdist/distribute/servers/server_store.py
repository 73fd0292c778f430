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

from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.buckets.spilled import KeptTable
from kdist.distribute.model.step_types import AuxLayout
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.servers import server_reads, server_values
from kdist.distribute.servers.packets import Pulled, Push
from kdist.distribute.servers.server_apply import ServerUpdate, traced_record
from kdist.distribute.servers.servers import (
    WINDOW,
    Server,
    create_servers,
    create_tallies,
    refuse_unsplittable,
)
from kdist.distribute.store.gradients import all_finite, divide
from kdist.distribute.store.optimizer import StoreOptimizer, inner_optimizer

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
        self._record_fn = traced_record(self.servers[0], self.tallies, aux)

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

    def pull(self, leave_out: Collection[int] = ()) -> Pulled:
        """Return what a step reads, on the caller's device.

        Args:
            leave_out: Buckets not to read; `()` stands in their place.
        """
        return server_reads.pull(self, leave_out)

    def look_up(self, wanted: Sequence[tuple[int, tf.Tensor]]) -> list[tf.Tensor]:
        """Return rows of tables, gathered where they live: `[number, columns]` each.

        Args:
            wanted: Buckets of tables, or of pieces, each with the rows of it to return: an int64
                vector on the caller's device.
        """
        return server_reads.look_up(self, wanted)

    def loss_scale_on_server(self) -> tf.Tensor:
        """Return the factor for the loss that moves with the updates, 1 if there is none."""
        if not self._scales_loss:
            return tf.ones((), tf.float32)
        return tf.convert_to_tensor(self._first_optimizer().optimizer.dynamic_scale)

    @property
    def static_loss_scale(self) -> float | None:
        """Return the factor for the loss where it is fixed; `None` where updates move it."""
        return None if self._scales_loss else float(self._static_scale or 1.0)

    def push(
        self,
        step_id: tf.Tensor,
        gradients: Sequence[Any],
        aux: tf.Tensor,
        pulled: Pulled,
        *,
        worker: Any,
    ) -> tf.Tensor:
        """Send one step's contribution to all servers, each under its lock.

        With `max_staleness` the first server decides, and the others are sent what it takes.

        Args:
            step_id: int64 scalar; a server that has applied it takes nothing.
            gradients: By bucket, in layout order, of the scaled loss.
            aux: The vector of `AuxLayout`.
            pulled: What the step read.
            worker: Index of the worker.

        Returns:
            Whether the step is applied now, a bool scalar: it is not if it was too old.
        """
        gradients, finite = self.without_loss_scale(gradients, pulled.loss_scale)
        version = pulled.version
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
        return tf.identity(self._at(server, server.apply_fn, server.parcels.pack(push)))

    @tf.autograph.experimental.do_not_convert
    def record_evaluation(self, evaluation_id: tf.Tensor, logged: tf.Tensor) -> None:
        """Add one evaluated batch to the evaluation's sums, once for each id."""
        self._at(self.servers[0], self._record_fn, evaluation_id, logged)

    @staticmethod
    def _at(server: Server, function: Callable[..., Any], *args: Any) -> Any:
        with tf.device(server.device):
            return function(*tf.nest.map_structure(tf.identity, args, expand_composites=True))

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
