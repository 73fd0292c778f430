"""What a step reads of the servers, as graph code: with few messages, since each tensor is one."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from kdist.distribute.buckets.layout import Bucket
from kdist.distribute.servers.packets import Pulled, RiderLayout, rides
from kdist.distribute.servers.parcels import join_ids, split_ids_again, split_rows
from kdist.distribute.servers.servers import Server
from kdist.distribute.store.replicated_store import unpack_states

if TYPE_CHECKING:
    from kdist.distribute.servers.server_store import ServerStore


def pull(store: "ServerStore", leave_out: Collection[int]) -> Pulled:
    """Return buckets, states, loss scale and version, on the caller's device.

    What the first server has beside its buckets rides with one of them: each tensor on its way is
    a message, which costs more than joining them.
    """
    first, buckets = store.servers[0], store.layout.buckets
    riders = RiderLayout(store.aux.num_states)
    riding = (i for i in first.bucket_indices if rides(buckets[i]) and i not in leave_out)
    carrier = next(riding, None)
    with tf.device(first.device):
        version = tf.convert_to_tensor(store.num_applied)
        # Other servers would wait for a message: only where staleness is bounded do they.
        before = [version] if store.max_staleness is not None else []
        with tf.control_dependencies([version]):
            vector = riders.pack(version, store.loss_scale_on_server(), store.states)
            if carrier is not None:
                vector = tf.concat([_value_of(first, carrier), vector], 0)
    sizes = [] if carrier is None else [buckets[carrier].size]
    *carried, vector = tf.split(tf.identity(vector), [*sizes, riders.size])
    values: list[Any] = [()] * len(buckets)
    with tf.control_dependencies(before):
        for server in store.servers:
            for index in server.bucket_indices:
                if index == carrier:
                    values[index] = carried[0]
                elif index not in leave_out:
                    with tf.device(server.device):
                        value = _value_of(server, index)
                    values[index] = tf.identity(value)
    version, scale, states = riders.unpack(vector)
    if store.static_loss_scale is not None:
        scale = tf.constant(store.static_loss_scale, tf.float32)
    return Pulled(values, unpack_states(states, store.structure.float_states), scale, version)


def look_up(store: "ServerStore", wanted: Sequence[tuple[int, tf.Tensor]]) -> list[tf.Tensor]:
    """Return rows of tables, those of one server in one message each way, in the order asked."""
    found: list[Any] = [None] * len(wanted)
    groups: dict[tuple[int, str], list[int]] = {}
    for place, (index, _) in enumerate(wanted):
        bucket = store.layout.buckets[index]
        groups.setdefault((bucket.server_index, bucket.dtype), []).append(place)
    for (server_index, _), places in groups.items():
        mine = [wanted[place] for place in places]
        parts = _look_up_on(store.servers[server_index], store.layout.buckets, mine)
        for place, rows in zip(places, parts, strict=True):
            found[place] = rows
    return found


def _look_up_on(
    server: Server, buckets: Sequence[Bucket], wanted: Sequence[tuple[int, tf.Tensor]]
) -> list[tf.Tensor]:
    indices, ids = [index for index, _ in wanted], [rows for _, rows in wanted]
    joined = join_ids(ids)
    with tf.device(server.device):
        tables = [server.buckets[server.bucket_indices.index(i)].value for i in indices]
        there = split_ids_again(tf.identity(joined), len(ids))
        rows = [tf.gather(table, each) for table, each in zip(tables, there, strict=True)]
        flat = tf.concat([tf.reshape(each, [-1]) for each in rows], 0)
    return split_rows(tf.identity(flat), ids, [buckets[i] for i in indices])


def _value_of(server: Server, bucket_index: int) -> tf.Tensor:
    bucket = server.buckets[server.bucket_indices.index(bucket_index)]
    return tf.convert_to_tensor(bucket.value)
