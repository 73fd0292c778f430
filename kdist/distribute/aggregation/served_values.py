"""What a server hands out in one message in synchronous training: all that a step reads of it.

As graph code: `read` runs on the server, `pulled` on the worker that gets the messages.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from kdist.distribute.servers.packets import Pulled, RiderLayout, rides
from kdist.distribute.servers.server_store import ServerStore
from kdist.distribute.store.replicated_store import unpack_states


class ServedValues:
    """Packs a server's values into one float32 vector, and those that do not fit into it."""

    def __init__(self, store: ServerStore, leave_out: Collection[int]):
        """Plan the vectors.

        Args:
            store: The parameters.
            leave_out: Buckets of which steps look up the rows that they need.
        """
        self._store = store
        self._riders = RiderLayout(store.aux.num_states)
        buckets = store.layout.buckets
        wanted = [[i for i in s.bucket_indices if i not in leave_out] for s in store.servers]
        self._riding = [[i for i in mine if rides(buckets[i])] for mine in wanted]
        self._others = [[i for i in mine if not rides(buckets[i])] for mine in wanted]

    def read(self, server_index: int) -> list[tf.Tensor]:
        """Return what a step reads of a server; call it on that server."""
        store = self._store
        flat = [self._value(server_index, i) for i in self._riding[server_index]]
        if server_index == 0:
            scale = store.loss_scale_on_server()
            flat.append(self._riders.pack(store.num_applied.read_value(), scale, store.states))
        others = [self._value(server_index, i) for i in self._others[server_index]]
        return [tf.concat(flat, 0) if flat else tf.zeros([0]), *others]

    def pulled(self, parts: Mapping[int, Sequence[tf.Tensor]]) -> Pulled:
        """Return what a step reads of the store, from what its servers handed out."""
        store, values = self._store, {}
        riders: Any = None
        for server_index, (vector, *others) in parts.items():
            sizes = [store.layout.buckets[i].size for i in self._riding[server_index]]
            rest = self._riders.size if server_index == 0 else 0
            *flat, last = tf.split(vector, [*sizes, rest])
            riders = last if server_index == 0 else riders
            values |= dict(zip(self._riding[server_index], flat, strict=True))
            values |= dict(zip(self._others[server_index], others, strict=True))
        version, scale, states = self._riders.unpack(riders)
        if store.static_loss_scale is not None:
            scale = tf.constant(store.static_loss_scale, tf.float32)
        return Pulled(
            [values.get(i, ()) for i in range(len(store.layout.buckets))],
            unpack_states(states, store.structure.float_states),
            scale,
            version,
        )

    def _value(self, server_index: int, bucket_index: int) -> tf.Tensor:
        server = self._store.servers[server_index]
        bucket: Any = server.buckets[server.bucket_indices.index(bucket_index)]
        return tf.convert_to_tensor(bucket.value)
