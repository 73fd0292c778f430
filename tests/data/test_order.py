"""The order of rows depends on (seed, pass) alone, and every pass is a permutation."""

import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.data.order import BatchOrder, is_power_of_four, permuted


def permutation(num_rows, seed=0, pass_index=0):
    positions = tf.range(num_rows, dtype=tf.int64)
    return permuted(positions, num_rows, seed, tf.constant(pass_index, tf.int64)).numpy()


@pytest.mark.parametrize(
    "num_rows",
    [1, 2, 3, 4, 5, 17, 100, 511, 512, 513, 1025, 1797, 4097, 65536, 65537, 65538, 262145, 300001],
)
def test_every_pass_is_a_permutation(num_rows):
    for seed, pass_index in [(0, 0), (7, 1), (-1, 2), (1 << 70, 3)]:
        found = permutation(num_rows, seed, pass_index)
        assert np.array_equal(np.sort(found), np.arange(num_rows))


@pytest.mark.parametrize("num_rows", [50, 1797, 65537])
def test_seed_and_pass_each_change_the_order(num_rows):
    cases = [(0, 0), (1, 0), (0, 1), (1 << 32, 0), (0, 1 << 31), (-1, 0)]
    orders = {permutation(num_rows, *case).tobytes() for case in cases}
    assert len(orders) == len(cases)
    assert np.array_equal(permutation(num_rows, 3, 4), permutation(num_rows, 3, 4))


@pytest.mark.parametrize("num_rows", [10, 600])
def test_rows_come_first_equally_often(num_rows):
    halves = [permutation(num_rows, 0, p)[: num_rows // 2] for p in range(400)]
    share_of_low_rows = np.mean([np.mean(half < num_rows // 2) for half in halves])
    assert abs(share_of_low_rows - 0.5) < 0.02


@pytest.mark.parametrize("num_rows", [1797, 60_000, 1_000_000])
def test_batches_are_mixed_like_random_ones(num_rows):
    """The rows of a batch that come from the first half vary as in independent draws."""
    found = []
    for pass_index in range(max(1, 500_000 // num_rows)):
        order = permutation(num_rows, 0, pass_index)
        batches = order[: num_rows // 64 * 64].reshape(-1, 64)
        for is_marked in (batches < num_rows // 2, batches % 2 == 0, batches // 8 % 2 == 0):
            found.append(is_marked.sum(axis=1).var())
    assert 15 < np.mean(found) < 17


def test_a_small_set_takes_every_order():
    orders = {permutation(3, 0, p).tobytes() for p in range(100)}
    assert len(orders) == 6


def test_powers_of_four():
    assert [n for n in range(-1, 70) if is_power_of_four(n)] == [1, 4, 16, 64]


def test_passes_do_not_repeat():
    """The cipher's own seed has 8 useful bits in each number."""
    orders = {permutation(600, 0, p).tobytes() for p in range(600)}
    assert len(orders) == 600


def test_order_does_not_depend_on_the_global_seed():
    found = []
    for seed in (1, 2):
        tf.random.set_seed(seed)
        found.append([permutation(n, 5).tobytes() for n in (100, 2000, 65537)])
    assert found[0] == found[1]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 9, 10, 11, 600])
def test_batches_of_a_pass_hold_each_row_once(shuffle, num_rows):
    order = BatchOrder(num_rows=num_rows, batch_size=5, shuffle=shuffle, seed=0)
    for pass_index in range(3):
        first = pass_index * order.batches_per_pass
        batches = [order.rows_of(first + k).numpy() for k in range(order.batches_per_pass)]
        assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(num_rows))
        assert [len(b) for b in batches[:-1]] == [5] * (order.batches_per_pass - 1)


def test_without_shuffle_batch_k_is_rows_k_times_b():
    order = BatchOrder(num_rows=23, batch_size=5, shuffle=False, seed=0)
    assert [order.rows_of(k).numpy().tolist() for k in (1, 4, 5, 9)] == [
        [5, 6, 7, 8, 9],
        [20, 21, 22],
        [0, 1, 2, 3, 4],
        [20, 21, 22],
    ]


@pytest.mark.parametrize(
    ("num_rows", "batch_size", "known"), [(24, 8, 8), (24, 7, None), (5, 8, 5), (8, 8, 8)]
)
def test_batches_are_alike_unless_a_pass_ends_with_a_smaller_one(num_rows, batch_size, known):
    order = BatchOrder(num_rows=num_rows, batch_size=batch_size, shuffle=False, seed=0)
    assert order.rows_per_batch == known
    sizes = {len(order.rows_of(tf.constant(i, tf.int64))) for i in range(order.batches_per_pass)}
    assert (sizes == {known}) == (known is not None)
