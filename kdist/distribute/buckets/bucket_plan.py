"""Decides how model variables share buckets, and which server holds which bucket. Pure Python."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kdist.distribute.buckets.layout import (
    LARGE_VARIABLE_BYTES,
    Bucket,
    BucketLayout,
    Member,
    Rows,
    VariableInfo,
)
from kdist.errors import ConfigError

# An update passes over a bucket and its slots a dozen times, so they should stay in the cache.
FLAT_BUCKET_BYTES = 128 * 1024
# On servers every bucket is a message in each direction as well.
SERVER_BUCKET_BYTES = 1024 * 1024
# What a server may hold of one variable before it is worth a message to share it.
PARTITION_BYTES = 16 * 1024 * 1024


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


@dataclass(frozen=True)
class _Piece:
    """A variable, or some rows of one."""

    variable: VariableInfo
    rows: Rows | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        if self.rows is None:
            return self.variable.shape
        return (self.rows.num, *self.variable.shape[1:])

    @property
    def size(self) -> int:
        if self.rows is None:
            return self.variable.size
        return self.variable.size // self.variable.shape[0] * self.rows.num

    @property
    def num_bytes(self) -> int:
        return self.size * self.variable.item_bytes


def plan_buckets(
    variables: Sequence[VariableInfo],
    *,
    can_flatten: bool,
    num_servers: int = 1,
    placement: str = "greedy_bytes",
    partition_bytes: int = PARTITION_BYTES,
    large_variable_bytes: int = LARGE_VARIABLE_BYTES,
    flat_bucket_bytes: int = FLAT_BUCKET_BYTES,
) -> BucketLayout:
    """Return the buckets of a model.

    Args:
        variables: The trainable variables, in model order.
        can_flatten: Whether the optimizer treats every element by itself, so that its update of a
            concatenation, or of some rows, equals that of the variables. If not, every variable is
            a bucket of its own, and whole.
        num_servers: Parameter servers to deal the buckets to; 1 for a store in the process.
        placement: A key of `PLACEMENTS`.
        partition_bytes: A variable of more bytes lies in pieces on several servers, as many as
            bring a piece below this, but at most one on each.
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
    pieces = [
        piece
        for variable in variables
        for piece in _pieces(variable, num_servers, partition_bytes, can_divide=can_flatten)
    ]
    owner = PLACEMENTS[placement]([piece.num_bytes for piece in pieces], num_servers)
    shared: dict[tuple[int, str, bool], list[_Piece]] = {}
    groups: list[tuple[int, list[_Piece], bool]] = []
    for piece, server in zip(pieces, owner, strict=True):
        variable = piece.variable
        if (
            not can_flatten
            or variable.needs_own_bucket
            or variable.has_sparse_gradient
            or variable.is_by_rows
            or variable.num_bytes >= large_variable_bytes
            or piece.rows is not None
        ):
            groups.append((server, [piece], False))
            continue
        key = (server, variable.dtype, variable.has_weight_decay)
        filled = sum(each.num_bytes for each in shared.get(key, ()))
        if key not in shared or filled + piece.num_bytes > flat_bucket_bytes:
            shared[key] = []
            groups.append((server, shared[key], True))
        shared[key].append(piece)
    return BucketLayout(
        tuple(_bucket(server, group, is_flat) for server, group, is_flat in groups), num_servers
    )


def _pieces(
    variable: VariableInfo, num_servers: int, partition_bytes: int, *, can_divide: bool
) -> list[_Piece]:
    """Return a variable whole, or in pieces.

    Rows of tables are dealt to the pieces in turn, since the common ids of a vocabulary are its
    first ones; other variables are cut into blocks.
    """
    num_rows = variable.shape[0] if variable.shape else 1
    num = 1
    if variable.is_by_rows:
        num = num_servers
    elif can_divide and not variable.needs_own_bucket:
        num = min(num_servers, -(-variable.num_bytes // partition_bytes))
    num = min(num, num_rows)
    if num <= 1:
        return [_Piece(variable)]
    if variable.is_by_rows or variable.has_sparse_gradient:
        dealt = [Rows(first=first, stop=num_rows, step=num) for first in range(num)]
        return [_Piece(variable, rows) for rows in dealt]
    cuts = [index * num_rows // num for index in range(num + 1)]
    blocks = [Rows(first=lo, stop=hi) for lo, hi in itertools.pairwise(cuts)]
    return [_Piece(variable, rows) for rows in blocks]


def _bucket(server: int, pieces: Sequence[_Piece], is_flat: bool) -> Bucket:
    members, offset = [], 0
    for piece in pieces:
        members.append(
            Member(
                variable_index=piece.variable.index,
                offset=offset,
                size=piece.size,
                shape=piece.shape,
                rows=piece.rows,
            )
        )
        offset += piece.size
    first = pieces[0].variable
    return Bucket(
        members=tuple(members),
        dtype=first.dtype,
        is_flat=is_flat,
        has_weight_decay=first.has_weight_decay,
        has_sparse_gradient=not is_flat and (first.has_sparse_gradient or first.is_by_rows),
        is_by_rows=first.is_by_rows,
        server_index=server,
        num_bytes=sum(piece.num_bytes for piece in pieces),
    )
