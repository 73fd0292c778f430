"""What one parameter server holds: buckets, an optimizer clone, a lock, and which steps it took."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.bucket_values import bucket_value
from kdist.distribute.buckets.layout import Bucket, BucketLayout, Rows
from kdist.distribute.buckets.table_search import plain_layers
from kdist.distribute.buckets.table_values import fill_rows
from kdist.distribute.model.step_types import AuxLayout
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.servers.contributions import Contributions
from kdist.distribute.servers.packets import PacketLayout
from kdist.distribute.servers.parcels import ParcelLayout
from kdist.distribute.store.optimizer import (
    StoreOptimizer,
    build_store_optimizer,
    inner_optimizer,
    updating_optimizers,
)
from kdist.distribute.store.replicated_store import pack_states
from kdist.distribute.values import fill, first_value, to_numpy
from kdist.errors import ConfigError

# Step ids that may be under way at once; a server remembers as many.
WINDOW = 1 << 16


@dataclass(kw_only=True)
class Server:
    """One parameter server's part of the store; `apply_fn` is called under the lock."""

    device: str
    bucket_indices: tuple[int, ...]
    buckets: list[keras.Variable]
    optimizer: StoreOptimizer | None
    lock: tf.CriticalSection
    applied: tf.Variable
    packets: PacketLayout
    parcels: ParcelLayout
    apply_fn: Any = field(default=None)


@dataclass(frozen=True, kw_only=True)
class Tallies:
    """What the first server counts and holds beside its buckets.

    Attributes:
        states: The floating states that steps write, packed.
        sums: Float64 sums of loss and metrics since the epoch began.
        num_applied: Steps applied since the store was made.
        evaluation_sums: The same as `sums`, of the evaluation under way.
        evaluated: Ids of evaluated batches, by their place in the window.
        contributions: Who contributed what.
    """

    states: tf.Variable
    sums: tf.Variable
    num_applied: tf.Variable
    evaluation_sums: tf.Variable
    evaluated: tf.Variable
    contributions: Contributions


def refuse_unsplittable(template: keras.optimizers.Optimizer, num_servers: int) -> None:
    """Refuse an optimizer that needs the whole gradient on one server.

    Raises:
        ConfigError: Naming the setting.
    """
    inner = inner_optimizer(template)
    parts = [each for each in updating_optimizers(template) if each is not inner]
    if num_servers > 1 and any(each.global_clipnorm for each in parts):
        raise ConfigError(
            "global_clipnorm inside a MultiOptimizer needs the whole gradient on one server. "
            f"Received: cluster.ps={num_servers}. Use cluster.ps=1 or clipnorm."
        )
    if num_servers > 1 and inner.global_clipnorm and inner.gradient_accumulation_steps:
        raise ConfigError(
            "global_clipnorm with gradient_accumulation_steps needs the whole gradient on one "
            f"server. Received: cluster.ps={num_servers}. Use cluster.ps=1 or clipnorm."
        )


def create_servers(
    structure: ModelStructure,
    layout: BucketLayout,
    aux: AuxLayout,
    devices: Sequence[str],
    changes: dict[str, Any],
) -> list[Server]:
    """Create every variable of the store on its server.

    Args:
        structure: The probed structure of the model.
        layout: The buckets, dealt to `len(devices)` servers.
        aux: The layout of the vector that rides with the gradients to the first server.
        devices: Device names of the servers.
        changes: Constructor arguments of the optimizer to replace in the clones.
    """
    return [
        _create_server(structure, layout, aux, index, device, changes)
        for index, device in enumerate(devices)
    ]


def _create_server(
    structure: ModelStructure,
    layout: BucketLayout,
    aux: AuxLayout,
    index: int,
    device: str,
    changes: dict[str, Any],
) -> Server:
    indices = layout.of_server(index)
    part = BucketLayout(tuple(layout.buckets[i] for i in indices))
    with tf.device(device):
        buckets = [_create_bucket(structure, i, layout.buckets[i]) for i in indices]
        optimizer = None
        if buckets:
            optimizer = build_store_optimizer(structure.model.optimizer, buckets, part, **changes)
        num_aux = aux.num_logged + aux.num_states if index == 0 else 0
        packets = PacketLayout(part.buckets, num_aux)
        return Server(
            device=device,
            bucket_indices=indices,
            buckets=buckets,
            optimizer=optimizer,
            lock=tf.CriticalSection(shared_name=f"kdist_server_{index}"),
            applied=tf.Variable(tf.fill([WINDOW], tf.constant(-1, tf.int64))),
            packets=packets,
            parcels=ParcelLayout(packets, part.buckets),
        )


def _create_bucket(structure: ModelStructure, index: int, bucket: Bucket) -> keras.Variable:
    [member, *others] = bucket.members
    original = structure.trainable[member.variable_index]
    if not others and not keras_adapter.has_value(original):
        return _create_table(structure, bucket, index)
    value = first_value(
        lambda: bucket_value(bucket, lambda i: to_numpy(structure.trainable[i])),
        bucket.shape,
        bucket.dtype,
    )
    variable = keras.Variable(value, dtype=bucket.dtype, name=f"bucket_{index}")
    if not bucket.is_flat:
        keras_adapter.set_path(variable, original.path, original.name)
        variable.constraint = original.constraint
    return variable


def _create_table(structure: ModelStructure, bucket: Bucket, index: int) -> keras.Variable:
    """Create a table, or a piece of one, and draw its rows where it lives."""
    [member] = bucket.members
    # No initializer: a graph would place what it makes beside its session, not on the server.
    value = tf.zeros(bucket.shape, bucket.dtype)
    variable = keras.Variable(value, dtype=bucket.dtype, name=f"bucket_{index}")
    original = structure.trainable[member.variable_index]
    keras_adapter.set_path(variable, original.path, original.name)
    layer = plain_layers(structure, member.variable_index)[0]
    rows = member.rows or Rows(first=0, stop=layer.input_dim)
    fill(variable, lambda raw: fill_rows(raw, layer, rows))
    return variable


def create_tallies(structure: ModelStructure, aux: AuxLayout, device: str) -> Tallies:
    """Create what the first server holds beside its buckets."""
    with tf.device(device):
        return Tallies(
            states=tf.Variable(
                first_value(
                    lambda: tf.constant(pack_states(structure.float_states)),
                    [aux.num_states],
                    tf.float32,
                ),
                trainable=False,
            ),
            sums=tf.Variable(tf.zeros([aux.num_logged], tf.float64), trainable=False),
            num_applied=tf.Variable(tf.constant(0, tf.int64), trainable=False),
            evaluation_sums=tf.Variable(tf.zeros([aux.num_logged], tf.float64), trainable=False),
            evaluated=tf.Variable(tf.fill([WINDOW], tf.constant(-1, tf.int64))),
            contributions=Contributions(),
        )
