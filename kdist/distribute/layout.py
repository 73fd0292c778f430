"""Decides how model variables share buckets, and which server holds which bucket.

Pure Python: no TensorFlow, no Keras. A bucket is what the parameter store reads, reduces and
updates as one: a flat vector of many small variables, or one large variable in its own shape.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kdist.errors import ConfigError

LARGE_VARIABLE_BYTES = 256 * 1024
# An update passes over a bucket and its slots a dozen times, so they should stay in the cache.
FLAT_BUCKET_BYTES = 128 * 1024
# On servers every bucket is a message in each direction as well.
SERVER_BUCKET_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class VariableInfo:
    """What the layout needs to know of one trainable variable.

    `index` is the position among the model's trainable variables; paths are labels only, because
    Keras paths are not unique.
    """

    index: int
    path: str
    shape: tuple[int, ...]
    dtype: str
    item_bytes: int
    needs_own_bucket: bool = False
    has_weight_decay: bool = True
    has_sparse_gradient: bool = False

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Return the size of the values in bytes."""
        return self.size * self.item_bytes


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a variable: from `first` up to before `stop`, every `step`-th one."""

    first: int
    stop: int
    step: int = 1

    @property
    def as_slice(self) -> slice:
        """Return the slice that takes these rows of an array, or writes them."""
        return slice(self.first, self.stop, self.step)

    @property
    def num(self) -> int:
        """Return how many rows there are."""
        return len(range(self.first, self.stop, self.step))


@dataclass(frozen=True, kw_only=True)
class Member:
    """One variable's place in its bucket: elements `[offset, offset + size)` of the flat vector.

    A variable that lies in pieces on several servers is a member of several buckets, each its own;
    `rows` says which rows of it are here, and `shape` is that of the piece.
    """

    variable_index: int
    offset: int
    size: int
    shape: tuple[int, ...]
    rows: Rows | None = None


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Variables that are read, reduced and updated together, on one server (`server_index`).

    A bucket with `has_sparse_gradient` is one table whose gradient travels as (rows, row ids): what
    an optimizer makes of an id that occurs twice in a batch depends on getting both rows.
    """

    members: tuple[Member, ...]
    dtype: str
    is_flat: bool
    has_weight_decay: bool
    has_sparse_gradient: bool = False
    server_index: int = 0
    num_bytes: int = 0

    @property
    def size(self) -> int:
        """Return the number of elements of all members."""
        return sum(member.size for member in self.members)


@dataclass(frozen=True)
class BucketLayout:
    """All buckets of a model, in the order in which the store holds them."""

    buckets: tuple[Bucket, ...]
    num_servers: int = 1

    def bytes_per_server(self) -> tuple[int, ...]:
        """Return the bytes of values (without optimizer slots) that each server holds."""
        totals = [0] * self.num_servers
        for bucket in self.buckets:
            totals[bucket.server_index] += bucket.num_bytes
        return tuple(totals)

    def of_server(self, server_index: int) -> tuple[int, ...]:
        """Return the indices of the buckets on one server."""
        return tuple(
            index for index, b in enumerate(self.buckets) if b.server_index == server_index
        )


def place_greedy_bytes(sizes: Sequence[int], num_servers: int) -> tuple[int, ...]:
    """Give each variable, largest first, to the server with the fewest bytes so far."""
    loads = [0] * num_servers
    owner = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        server = loads.index(min(loads))
        owner[index] = server
        loads[server] += sizes[index]
    return tuple(owner)


def place_round_robin(sizes: Sequence[int], num_servers: int) -> tuple[int, ...]:
    """Deal the variables to the servers in turn, as `tf.train.replica_device_setter` did."""
    return tuple(index % num_servers for index in range(len(sizes)))


PLACEMENTS = {"greedy_bytes": place_greedy_bytes, "round_robin": place_round_robin}


def plan_buckets(
    variables: Sequence[VariableInfo],
    *,
    can_flatten: bool,
    num_servers: int = 1,
    placement: str = "greedy_bytes",
    large_variable_bytes: int = LARGE_VARIABLE_BYTES,
    flat_bucket_bytes: int = FLAT_BUCKET_BYTES,
) -> BucketLayout:
    """Return the buckets of a model.

    Args:
        variables: The trainable variables, in model order.
        can_flatten: Whether the optimizer's update of a concatenation equals the updates of its
            parts. If not, every variable is a bucket of its own.
        num_servers: Parameter servers to deal the buckets to; 1 for a store in the process.
        placement: A key of `PLACEMENTS`.
        large_variable_bytes: From this size on a variable is a bucket of its own.
        flat_bucket_bytes: How large a shared bucket may grow.

    Raises:
        ConfigError: If the placement is unknown.
    """
    if placement not in PLACEMENTS:
        raise ConfigError(
            f"strategy.placement must be one of {', '.join(sorted(PLACEMENTS))}. "
            f"Received: {placement!r}."
        )
    owner = PLACEMENTS[placement]([v.num_bytes for v in variables], num_servers)
    shared: dict[tuple[int, str, bool], list[VariableInfo]] = {}
    groups: list[tuple[int, list[VariableInfo], bool]] = []
    for variable, server in zip(variables, owner, strict=True):
        needs_own = variable.needs_own_bucket or variable.has_sparse_gradient
        if not can_flatten or needs_own or variable.num_bytes >= large_variable_bytes:
            groups.append((server, [variable], False))
            continue
        key = (server, variable.dtype, variable.has_weight_decay)
        filled = sum(v.num_bytes for v in shared.get(key, ()))
        if key not in shared or filled + variable.num_bytes > flat_bucket_bytes:
            shared[key] = []
            groups.append((server, shared[key], True))
        shared[key].append(variable)
    return BucketLayout(
        tuple(_bucket(server, group, is_flat) for server, group, is_flat in groups), num_servers
    )


def _bucket(server: int, variables: Sequence[VariableInfo], is_flat: bool) -> Bucket:
    members, offset = [], 0
    for variable in variables:
        members.append(
            Member(
                variable_index=variable.index,
                offset=offset,
                size=variable.size,
                shape=variable.shape,
            )
        )
        offset += variable.size
    return Bucket(
        members=tuple(members),
        dtype=variables[0].dtype,
        is_flat=is_flat,
        has_weight_decay=variables[0].has_weight_decay,
        has_sparse_gradient=not is_flat and variables[0].has_sparse_gradient,
        server_index=server,
        num_bytes=sum(v.num_bytes for v in variables),
    )
