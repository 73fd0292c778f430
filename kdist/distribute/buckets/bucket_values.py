"""The way between variables and buckets, for values on the host: arrays only.

A variable may be a part of a flat bucket, a bucket of its own, or lie in pieces in several buckets
on several servers. Optimizer slots are laid out as the buckets that they belong to.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kdist.distribute.buckets.layout import Bucket

# Returns the value of a variable, by its position among the trainable ones.
ReadVariable = Callable[[int], np.ndarray]


def bucket_value(bucket: Bucket, read_variable: ReadVariable) -> np.ndarray:
    """Return what a bucket holds, given the values of whole variables."""
    if bucket.is_flat:
        return np.concatenate([read_variable(m.variable_index).ravel() for m in bucket.members])
    [member] = bucket.members
    value = read_variable(member.variable_index)
    piece = value if member.rows is None else value[member.rows.as_slice]
    return piece.reshape(member.shape)


def split_members(bucket: Bucket, values: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return (variable index, value) for each member; of a variable in pieces, the piece."""
    if not bucket.is_flat:
        return [(bucket.members[0].variable_index, values)]
    return [
        (m.variable_index, values[m.offset : m.offset + m.size].reshape(m.shape))
        for m in bucket.members
    ]


def variable_values(
    buckets: Sequence[Bucket], read_bucket: Callable[[int], np.ndarray]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (variable index, value) of every variable in these buckets, each variable once.

    Args:
        buckets: All buckets that hold a part of these variables.
        read_bucket: Returns the value of a bucket, by its position in `buckets`; called once for
            each, and late, so that one variable at a time is held.
    """
    done: set[int] = set()
    for position, bucket in enumerate(buckets):
        member = bucket.members[0]
        if member.rows is None:
            yield from split_members(bucket, read_bucket(position))
        elif member.variable_index not in done:
            done.add(member.variable_index)
            yield member.variable_index, _joined(buckets, member.variable_index, read_bucket)


def _joined(
    buckets: Sequence[Bucket], variable_index: int, read_bucket: Callable[[int], np.ndarray]
) -> np.ndarray:
    """Return a variable that lies in pieces."""
    pieces = [
        (position, bucket.members[0])
        for position, bucket in enumerate(buckets)
        if bucket.members[0].variable_index == variable_index
    ]
    num_rows = sum(member.shape[0] for _, member in pieces)
    whole: np.ndarray | None = None
    for position, member in pieces:
        piece = read_bucket(position)
        if whole is None:
            whole = np.empty([num_rows, *member.shape[1:]], piece.dtype)
        assert member.rows is not None
        whole[member.rows.as_slice] = piece
    assert whole is not None
    return whole
