"""What the parameter store reads, reduces and updates as one: buckets. Pure Python.

A bucket is a flat vector of many small variables, one large variable in its own shape, or some
rows of one that lies in pieces on several servers. `bucket_plan` decides which are which.
"""

import math
from dataclasses import dataclass

# From this size on a variable is a bucket of its own, and a table stays on its server.
LARGE_VARIABLE_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class VariableInfo:
    """What the layout needs to know of one trainable variable.

    `index` is the position among the model's trainable variables; paths are labels only, because
    Keras paths are not unique. `is_by_rows` says that an update touches only the rows that a batch
    reads (`strategy.sparse=rows`).
    """

    index: int
    path: str
    shape: tuple[int, ...]
    dtype: str
    item_bytes: int
    needs_own_bucket: bool = False
    has_weight_decay: bool = True
    has_sparse_gradient: bool = False
    is_by_rows: bool = False

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

    A bucket with `has_sparse_gradient` is one table (or a piece of it) whose gradient travels as
    (rows, row ids): what an optimizer makes of an id that occurs twice in a batch depends on
    getting both rows. With `is_by_rows` it gets their sum, and updates these rows only.
    """

    members: tuple[Member, ...]
    dtype: str
    is_flat: bool
    has_weight_decay: bool
    has_sparse_gradient: bool = False
    is_by_rows: bool = False
    server_index: int = 0
    num_bytes: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of its value: that of its one member, or flat."""
        return (self.size,) if self.is_flat else self.members[0].shape

    @property
    def size(self) -> int:
        """Return the number of elements of all members."""
        return sum(member.size for member in self.members)


@dataclass(frozen=True)
class BucketLayout:
    """All buckets of a model, in the order in which the store holds them."""

    buckets: tuple[Bucket, ...]
    num_servers: int = 1

    @property
    def has_row_tables(self) -> bool:
        """Return whether some tables are updated by rows."""
        return any(bucket.is_by_rows for bucket in self.buckets)

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
