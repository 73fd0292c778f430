"""The order of rows: a pure function of the batch index, so that nothing has to be remembered.

Resume, a re-run on another worker and a second task with the same seed all see the same rows,
because the rows of batch `k` depend on `(k, seed)` and on nothing else.
"""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

# Up to this many rows, sorting random keys for a whole pass costs less than the cipher behind
# `RandomIndexShuffle`, which walks through 2**16 positions however few are wanted.
_MAX_SORTED_ROWS = 512


@dataclass(frozen=True, kw_only=True)
class BatchOrder:
    """Deals `num_rows` rows into batches, pass after pass, without end.

    A pass holds each row once. Batches never reach across the end of a pass: its last batch has
    the rows that are left. The order of a pass depends on `(seed, pass index)` alone.
    """

    num_rows: int
    batch_size: int
    shuffle: bool
    seed: int

    @property
    def batches_per_pass(self) -> int:
        """Return the number of batches that hold each row once."""
        return -(-self.num_rows // self.batch_size)

    @property
    def rows_per_batch(self) -> int | None:
        """Return the rows of every batch, `None` if the last one of a pass has fewer."""
        size = min(self.batch_size, self.num_rows)
        return None if self.num_rows % size else size

    def end_of_pass(self, batch_index: int) -> int:
        """Return the index of the first batch of the pass after the one of `batch_index`."""
        return (batch_index // self.batches_per_pass + 1) * self.batches_per_pass

    def positions(self, batch_index: Any) -> tuple[Any, Any, Any]:
        """Return `(pass_index, lo, hi)` of a batch: its positions `[lo, hi)` within its pass.

        Args:
            batch_index: Integer scalar tensor, counted over all passes.

        Returns:
            Three int64 scalar tensors.
        """
        batch_index = tf.cast(batch_index, tf.int64)
        lo = batch_index % self.batches_per_pass * self.batch_size
        return (
            batch_index // self.batches_per_pass,
            lo,
            tf.minimum(lo + self.batch_size, self.num_rows),
        )

    def rows_at(self, pass_index: Any, lo: Any, hi: Any) -> Any:
        """Return the row ids at positions `[lo, hi)` of a pass, an int64 vector."""
        return self.rows_in_pass(pass_index, tf.range(lo, hi, dtype=tf.int64))

    def rows_in_pass(self, pass_index: Any, positions: Any) -> Any:
        """Return the row ids at `positions` of a pass, both int64 vectors."""
        if not self.shuffle or self.num_rows == 1:
            return positions
        return permuted(positions, self.num_rows, self.seed, pass_index)

    def rows_of(self, batch_index: Any) -> Any:
        """Return the row ids of a global batch, an int64 vector in the order of the batch."""
        return self.rows_at(*self.positions(batch_index))


def permuted(positions: Any, num_rows: int, seed: int, pass_index: Any) -> Any:
    """Return where a pseudorandom permutation of `range(num_rows)` sends `positions`.

    Args:
        positions: int64 vector with values in `[0, num_rows)`.
        num_rows: The size of the permutation, at least 1.
        seed: Any Python integer; its low 64 bits count.
        pass_index: int64 scalar tensor; every pass has a permutation of its own.
    """
    pass_seed = tf.stack([tf.constant(_signed(seed), tf.int64), tf.cast(pass_index, tf.int64)])
    if num_rows <= _MAX_SORTED_ROWS:
        keys = tf.random.stateless_uniform(
            [num_rows], pass_seed, maxval=tf.int64.max, dtype=tf.int64
        )
        return tf.cast(tf.gather(tf.argsort(keys, stable=True), positions), tf.int64)
    # `RandomIndexShuffle` looks at the low bits of its seed only (8 of each number, up to 65,536
    # rows): seed and pass are hashed first, and turning by random amounts makes up for the rest.
    drawn: Any = tf.random.stateless_uniform([6], pass_seed, maxval=tf.int64.max, dtype=tf.int64)
    turns = drawn[3:5] % num_rows
    positions = (positions + turns[0]) % num_rows
    if is_power_of_four(num_rows - 1):
        found = _ciphered_with_one_more(positions, num_rows, drawn[:3], drawn[5] % num_rows)
    else:
        found = _ciphered(positions, num_rows, drawn[:3])
    return (found + turns[1]) % num_rows


def is_power_of_four(number: int) -> bool:
    """Return whether `number` is 1, 4, 16, ..."""
    return number > 0 and number & (number - 1) == 0 and number.bit_length() % 2 == 1


def _ciphered(positions: Any, num_rows: int, key: Any) -> Any:
    return tf.raw_ops.RandomIndexShuffle(
        index=positions,
        seed=key,
        max_index=tf.constant(num_rows - 1, tf.int64),
        rounds=_num_rounds(num_rows),
    )


def _num_rounds(num_rows: int) -> int:
    """Return how often the cipher mixes, by what it takes to leave no trace of the old order.

    Four rounds, the usual number, left neighbours together: in batches of 64 out of 60,000 rows
    the number of rows from the first half varied by 4.6 instead of 16. Eight did so from a
    million rows on. With few rows a position runs through the rounds many times anyway.
    """
    if num_rows <= 4096:
        return 4
    return 8 if num_rows <= 1 << 16 else 12


def _ciphered_with_one_more(positions: Any, num_rows: int, key: Any, partner: Any) -> Any:
    """Permute all rows but the last, then swap the last one in at `partner`.

    `RandomIndexShuffle` is no permutation when its largest index is a power of four (found with
    65,537 rows: two positions got one row, and one row was never seen).
    """
    last = tf.constant(num_rows - 1, tf.int64)
    swapped = tf.where(positions == last, partner, tf.where(positions == partner, last, positions))
    inner = _ciphered(tf.minimum(swapped, last - 1), num_rows - 1, key)
    return tf.where(swapped == last, last, inner)


def _signed(seed: int) -> int:
    """Return the low 64 bits of `seed` as a signed number."""
    low = seed & 0xFFFF_FFFF_FFFF_FFFF
    return low - (1 << 64) if low >> 63 else low
