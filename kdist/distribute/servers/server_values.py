"""Values of a store on servers, read and written from outside of its steps."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.bucket_values import bucket_value, variable_values
from kdist.distribute.buckets.layout import LARGE_VARIABLE_BYTES
from kdist.distribute.buckets.spilled import KeptTable
from kdist.distribute.buckets.table_search import plain_layers
from kdist.distribute.store.replicated_store import fingerprint, pack_states, write_states
from kdist.distribute.values import read_each, to_numpy, write, write_each

if TYPE_CHECKING:
    from kdist.distribute.servers.server_store import ServerStore


def write_to_model(store: "ServerStore") -> None:
    """Give the model's variables the servers' values; one variable is on the way at a time."""
    structure = store.structure
    variables = {
        index: variable
        for index, variable in _buckets(store).items()
        if store.layout.buckets[index].members[0].variable_index not in structure.kept_on_servers
    }
    positions = sorted(variables)
    small = [i for i in positions if store.layout.buckets[i].num_bytes < LARGE_VARIABLE_BYTES]
    known = dict(zip(small, read_each(variables[i] for i in small), strict=True))

    def value_of(position: int) -> np.ndarray:
        index = positions[position]
        return known[index] if index in known else to_numpy(variables[index])

    values = variable_values([store.layout.buckets[index] for index in positions], value_of)
    for position, value in values:
        keras_adapter.give_value(store.structure.trainable[position], value)
    write_states_to_model(store)
    store.frozen_fingerprint = fingerprint(store.structure.frozen)


def write_states_to_model(store: "ServerStore") -> None:
    """Give the model's non-trainable variables the servers' values."""
    if store.structure.float_states:
        write_states(store.structure.float_states, to_numpy(store.states))


def read_from_model(store: "ServerStore") -> bool:
    """Take over what somebody wrote into the model; return whether anything differed."""
    structure = store.structure
    changed = store.frozen_fingerprint != fingerprint(structure.frozen)
    changed = write_each(_differing(store)) > 0 or changed
    for index in structure.kept_on_servers:
        keras_adapter.drop_value(structure.trainable[index])
    states = pack_states(structure.float_states)
    if not np.array_equal(states, to_numpy(store.states), equal_nan=True):
        write(store.states, states)
        changed = True
    return changed


def _differing(store: "ServerStore") -> Iterator[tuple[Any, np.ndarray]]:
    """Yield the variables of buckets that have other values than the model, with the model's."""
    trainable, variables = store.structure.trainable, _buckets(store)
    buckets = store.layout.buckets
    held = [
        index
        for index, bucket in enumerate(buckets)
        if keras_adapter.has_value(trainable[bucket.members[0].variable_index])
    ]
    for index, found in zip(held, read_each(variables[index] for index in held), strict=True):
        value = bucket_value(buckets[index], lambda i: to_numpy(trainable[i]))
        if not np.array_equal(value, found, equal_nan=True):
            yield variables[index], value


def kept_tables(store: "ServerStore") -> list[KeptTable]:
    """Return the tables whose values the model is never given."""
    variables, buckets = _buckets(store), store.layout.buckets
    return [
        KeptTable(
            layer=plain_layers(store.structure, index)[0],
            parts=[
                (bucket, variables[position])
                for position, bucket in enumerate(buckets)
                if bucket.members[0].variable_index == index
            ],
        )
        for index in sorted(store.structure.kept_on_servers)
    ]


def _buckets(store: "ServerStore") -> dict:
    """Return the variable of each bucket, by its index in the layout."""
    return {
        index: variable
        for server in store.servers
        for index, variable in zip(server.bucket_indices, server.buckets, strict=True)
    }
