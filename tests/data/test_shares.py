"""The share rule: who takes which rows of a global batch."""

import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.shares import (
    WorkerShare,
    replica_in_block_op,
    share_bounds,
    share_bounds_op,
    worker_block,
    worker_block_op,
)
from kdist.errors import ConfigError

SPLITS = [(n, r) for n in (1, 2, 3, 5, 7, 8, 64, 65) for r in (1, 2, 3, 4, 6)]


@pytest.mark.parametrize(("num_rows", "num_replicas"), SPLITS)
def test_voting_replicas_cover_each_row_once(num_rows, num_replicas):
    covered = np.zeros(num_rows, int)
    for replica in range(num_replicas):
        lo, hi, vote = share_bounds(num_rows, replica, num_replicas)
        assert lo < hi, "no replica runs on an empty share"
        if vote:
            covered[lo:hi] += 1
    assert (covered == 1).all()


def test_shares_of_a_replica_differ_by_one_row_at_most():
    sizes = [hi - lo for lo, hi, _ in (share_bounds(30, r, 4) for r in range(4))]
    assert sizes == [7, 8, 7, 8]


@pytest.mark.parametrize(
    ("num_rows", "replica", "num_replicas", "expected"),
    [
        (7, 0, 2, (0, 3, True)),
        (7, 1, 2, (3, 7, True)),
        (1, 0, 2, (0, 1, True)),
        (1, 1, 2, (0, 1, False)),
        (2, 2, 3, (0, 2, False)),
    ],
)
def test_known_shares(num_rows, replica, num_replicas, expected):
    assert share_bounds(num_rows, replica, num_replicas) == expected


@pytest.mark.parametrize(("num_rows", "num_replicas"), SPLITS)
def test_tensors_follow_the_same_rule(num_rows, num_replicas):
    for replica in range(num_replicas):
        for index in (replica, tf.constant(replica)):
            found = share_bounds_op(tf.constant(num_rows, tf.int64), index, num_replicas)
            assert [t.dtype for t in found] == [tf.int64, tf.int64, tf.bool]
            assert tuple(t.numpy() for t in found) == share_bounds(num_rows, replica, num_replicas)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 9, 64])
@pytest.mark.parametrize(("num_workers", "replicas"), [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)])
def test_a_block_holds_its_replicas_shares(num_rows, num_workers, replicas):
    for worker in range(num_workers):
        share = WorkerShare(
            worker_index=worker, num_workers=num_workers, replicas_per_worker=replicas
        )
        block = worker_block(num_rows, share)
        assert tuple(t.numpy() for t in worker_block_op(tf.constant(num_rows), share)) == block
        for replica in range(replicas):
            lo, hi, vote = share_bounds(num_rows, worker * replicas + replica, share.num_replicas)
            found = replica_in_block_op(tf.constant(num_rows), share, replica)
            assert tuple(t.numpy() for t in found) == (lo - block[0], hi - block[0], vote)
            assert 0 <= lo - block[0] < hi - block[0] <= block[1] - block[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"worker_index": 2, "num_workers": 2},
        {"worker_index": -1, "num_workers": 2},
        {"replicas_per_worker": 0},
    ],
)
def test_positions_that_no_cluster_has_are_refused(fields):
    with pytest.raises(ConfigError, match="Received"):
        WorkerShare(**fields)
