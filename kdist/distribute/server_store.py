"""The parameter store on parameter servers: each server holds buckets, slots and a lock.

An update takes the lock of a server, skips step ids that this server has applied before, and runs
the same public `optimizer.apply` as every other mode. So no update is lost, none counts twice, and
momentum stays consistent, however many workers push at once and however often a step is re-run.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.layout import Bucket, BucketLayout
from kdist.distribute.optimizer import (
    StoreOptimizer,
    all_finite,
    build_store_optimizer,
    divide,
    inner_optimizer,
    split_members,
    updating_optimizers,
)
from kdist.distribute.packets import Packet, PacketLayout, Push
from kdist.distribute.step_types import AuxLayout
from kdist.distribute.store import fingerprint, pack_states, to_numpy, unpack_states, write_states
from kdist.distribute.structure import ModelStructure
from kdist.errors import ConfigError

# Step ids that may be under way at once; a server remembers as many.
WINDOW = 1 << 16


@dataclass(kw_only=True)
class Server:
    """One parameter server's part of the store."""

    device: str
    bucket_indices: tuple[int, ...]
    buckets: list[keras.Variable]
    optimizer: StoreOptimizer | None
    lock: tf.CriticalSection
    applied: tf.Variable
    packets: PacketLayout
    apply_fn: Any = field(default=None)


class ServerStore:
    """Buckets, optimizer clones and counters on the servers; the coordinator creates it once."""

    def __init__(
        self,
        structure: ModelStructure,
        layout: BucketLayout,
        aux: AuxLayout,
        devices: Sequence[str],
    ):
        """Create every variable on its server.

        Args:
            structure: The probed structure of the model.
            layout: The buckets, dealt to `len(devices)` servers.
            aux: The layout of the vector that rides with the gradients.
            devices: Device names of the servers, such as "/job:ps/replica:0/task:0/device:CPU:0".

        Raises:
            ConfigError: If the optimizer cannot be split over servers.
        """
        self.structure = structure
        self.layout = layout
        self.aux = aux
        self.num_model_reads = 0
        self._frozen_fingerprint: list[int] = []
        template = structure.model.optimizer
        inner = inner_optimizer(template)
        self._scales_loss = inner is not template
        self._static_scale = inner.loss_scale_factor
        self._global_clipnorm = inner.global_clipnorm if len(devices) > 1 else None
        parts = [each for each in updating_optimizers(template) if each is not inner]
        if len(devices) > 1 and any(each.global_clipnorm for each in parts):
            raise ConfigError(
                "global_clipnorm inside a MultiOptimizer needs the whole gradient on one server. "
                f"Received: cluster.ps={len(devices)}. Use cluster.ps=1 or clipnorm."
            )
        if self._global_clipnorm and inner.gradient_accumulation_steps:
            raise ConfigError(
                "global_clipnorm with gradient_accumulation_steps needs the whole gradient on one "
                f"server. Received: cluster.ps={len(devices)}. Use cluster.ps=1 or clipnorm."
            )
        changes = {"global_clipnorm": None} if self._global_clipnorm else {}
        self.servers = [
            self._create_server(index, device, changes) for index, device in enumerate(devices)
        ]
        with tf.device(devices[0]):
            self.states = tf.Variable(
                tf.constant(pack_states(structure.float_states)), trainable=False
            )
            self.sums = tf.Variable(tf.zeros([aux.num_logged], tf.float64), trainable=False)
            self.num_applied = tf.Variable(tf.constant(0, tf.int64), trainable=False)
            self.evaluation_sums = tf.Variable(
                tf.zeros([aux.num_logged], tf.float64), trainable=False
            )
            self.evaluated = tf.Variable(tf.fill([WINDOW], tf.constant(-1, tf.int64)))
        for index, server in enumerate(self.servers):
            server.apply_fn = self._trace_apply(index, server)
        self._record_fn = self._trace_record()

    def _create_server(self, index: int, device: str, changes: dict[str, Any]) -> Server:
        indices = self.layout.of_server(index)
        with tf.device(device):
            buckets = [self._create_bucket(i, self.layout.buckets[i]) for i in indices]
            optimizer = None
            if buckets:
                part = BucketLayout(tuple(self.layout.buckets[i] for i in indices))
                optimizer = build_store_optimizer(
                    self.structure.model.optimizer, buckets, part, **changes
                )
            return Server(
                device=device,
                bucket_indices=indices,
                buckets=buckets,
                optimizer=optimizer,
                lock=tf.CriticalSection(shared_name=f"kdist_server_{index}"),
                applied=tf.Variable(tf.fill([WINDOW], tf.constant(-1, tf.int64))),
                packets=PacketLayout(
                    [self.layout.buckets[i] for i in indices],
                    self.aux.num_logged + self.aux.num_states if index == 0 else 0,
                ),
            )

    def _create_bucket(self, index: int, bucket: Bucket) -> keras.Variable:
        members = [self.structure.trainable[m.variable_index] for m in bucket.members]
        if bucket.is_flat:
            value = np.concatenate([to_numpy(v).ravel() for v in members])
            return keras.Variable(value, dtype=bucket.dtype, name=f"bucket_{index}")
        variable = keras.Variable(to_numpy(members[0]), dtype=bucket.dtype, name=f"bucket_{index}")
        keras_adapter.set_path(variable, members[0].path, members[0].name)
        variable.constraint = members[0].constraint
        return variable

    # inside a step, on a worker

    def read_buckets(self, leave_out: Collection[int] = ()) -> list[Any]:
        """Return the current buckets on the caller's device, in layout order.

        Args:
            leave_out: Buckets not to read; `None` stands in their place.
        """
        values: list[Any] = [None] * len(self.layout.buckets)
        for server in self.servers:
            for index, bucket in zip(server.bucket_indices, server.buckets, strict=True):
                if index in leave_out:
                    continue
                with tf.device(server.device):
                    value = tf.convert_to_tensor(bucket.value)
                values[index] = tf.identity(value)
        return values

    def look_up(self, bucket_index: int, ids: tf.Tensor) -> tf.Tensor:
        """Return rows of a table, gathered on its server: `[len(ids), columns]`.

        Args:
            bucket_index: The table's bucket.
            ids: int64 vector on the caller's device.
        """
        server = self.servers[self.layout.buckets[bucket_index].server_index]
        table = server.buckets[server.bucket_indices.index(bucket_index)]
        with tf.device(server.device):
            rows = tf.gather(table.value, tf.identity(ids))
        return tf.identity(rows)

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

    def push(
        self, step_id: tf.Tensor, gradients: Sequence[Any], aux: tf.Tensor, loss_scale: tf.Tensor
    ) -> None:
        """Send one step's contribution to all servers, each under its lock.

        Args:
            step_id: int64 scalar; a server that has applied it takes nothing.
            gradients: By bucket, in layout order, of the scaled loss.
            aux: The vector of `AuxLayout`.
            loss_scale: What `read_loss_scale` returned for this step.
        """
        finite = tf.constant(True)
        if self._scales_loss:
            finite = all_finite(gradients)
            gradients = [divide(gradient, loss_scale) for gradient in gradients]
        if self._global_clipnorm:
            scale = self._static_scale or 1.0  # The servers' optimizers divide by it afterwards.
            gradients, _ = tf.clip_by_global_norm(list(gradients), self._global_clipnorm * scale)
        for index, server in enumerate(self.servers):
            mine = [gradients[i] for i in server.bucket_indices]
            self.push_to(index, Push(step_id, finite, mine, aux))

    def push_to(self, server_index: int, push: Push) -> None:
        """Send one server its part of a step; it takes the part under its lock, once."""
        server = self.servers[server_index]
        if server.bucket_indices or server_index == 0:
            packet = server.packets.pack(push)
            self._locked(server, server.apply_fn, packet)

    @tf.autograph.experimental.do_not_convert
    def record_evaluation(self, evaluation_id: tf.Tensor, logged: tf.Tensor) -> None:
        """Add one evaluated batch to the evaluation's sums, once for each id."""
        self._locked(self.servers[0], self._record_fn, evaluation_id, logged)

    @staticmethod
    def _locked(server: Server, function: Callable[..., Any], *args: Any) -> None:
        with tf.device(server.device):
            local = tf.nest.map_structure(tf.identity, args, expand_composites=True)
            server.lock.execute(lambda: function(*local))

    def _trace_apply(self, index: int, server: Server) -> Any:
        is_first = index == 0

        def apply(packet: Packet) -> tf.Tensor:
            with tf.device(server.device):
                push = server.packets.unpack(packet)
                slot = push.step_id % WINDOW
                fresh = tf.not_equal(tf.gather(server.applied, slot), push.step_id)
                tf.cond(fresh, lambda: self._take(server, push, is_first), _nothing)
                server.applied.scatter_nd_update([[slot]], [push.step_id])
                return tf.constant(0)

        return tf.function(apply, autograph=False).get_concrete_function(server.packets.spec)

    def _take(self, server: Server, push: Push, is_first: bool) -> tf.Tensor:
        """Apply what one server is sent; traced into the branch of a step that is new to it."""
        if server.optimizer is not None:
            if self._scales_loss:
                tf.cond(push.is_finite, lambda: _apply(server, push.gradients), _nothing)
                server.optimizer.move_loss_scale(push.is_finite)
            else:
                _apply(server, push.gradients)
        if is_first:
            num_logged = self.aux.num_logged
            self.num_applied.assign_add(1)
            self.sums.assign_add(tf.cast(push.aux[:num_logged], tf.float64))
            if self.structure.float_states:
                self.states.assign_add(push.aux[num_logged:])
        return tf.constant(0)

    def _trace_record(self) -> Any:
        def record(evaluation_id: Any, logged: Any) -> tf.Tensor:
            with tf.device(self.servers[0].device):
                slot = evaluation_id % WINDOW
                fresh = tf.not_equal(tf.gather(self.evaluated, slot), evaluation_id)
                weight = tf.cast(fresh, tf.float64)
                self.evaluation_sums.assign_add(tf.cast(logged, tf.float64) * weight)
                self.evaluated.scatter_nd_update([[slot]], [evaluation_id])
                return tf.constant(0)

        return tf.function(record, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int64), tf.TensorSpec([self.aux.num_logged], tf.float32)
        )

    # on the coordinator, between stretches of steps

    def write_to_model(self) -> None:
        """Give the model's variables the servers' values."""
        for server in self.servers:
            for index, variable in zip(server.bucket_indices, server.buckets, strict=True):
                for position, value in split_members(
                    self.layout.buckets[index], to_numpy(variable)
                ):
                    self.structure.trainable[position].assign(value)
        if self.structure.float_states:
            write_states(self.structure.float_states, self.states.numpy())
        self._frozen_fingerprint = fingerprint(self.structure.frozen)

    def read_from_model(self) -> bool:
        """Take over what somebody wrote into the model; return whether anything differed."""
        self.num_model_reads += 1
        changed = self._frozen_fingerprint != fingerprint(self.structure.frozen)
        for server in self.servers:
            for index, variable in zip(server.bucket_indices, server.buckets, strict=True):
                bucket = self.layout.buckets[index]
                members = [self.structure.trainable[m.variable_index] for m in bucket.members]
                value = np.concatenate([to_numpy(v).ravel() for v in members])
                value = value if bucket.is_flat else value.reshape(bucket.members[0].shape)
                if not np.array_equal(value, to_numpy(variable), equal_nan=True):
                    variable.assign(value)
                    changed = True
        states = pack_states(self.structure.float_states)
        if not np.array_equal(states, self.states.numpy(), equal_nan=True):
            self.states.assign(states)
            changed = True
        return changed

    def take_from_chief(self) -> None:
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


def _apply(server: Server, gradients: list[Any]) -> tf.Tensor:
    assert server.optimizer is not None
    server.optimizer.inner.apply(gradients, server.buckets)
    return tf.constant(0)


def _nothing() -> tf.Tensor:
    return tf.constant(0)
