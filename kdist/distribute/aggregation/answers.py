"""What a replica is answered in synchronous training, as graph code: which share, of which step.

An answer is an int64 vector; see `share_dealer.dealt`. It rides with the parameters of its step.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# What an answer begins with, before the replicas whose shares make the step before.
HEAD = 4


class Dealt(NamedTuple):
    """What a replica gets when it asks: the answer, and what the first server serves with it."""

    answer: Any
    served: list[Any]


def of_step(answer: Any) -> tf.Tensor:
    """Return what servers are told of an answer: its step, and who made the step before."""
    return tf.concat([answer[2:3], answer[HEAD:]], 0)


def with_answer(answer: Any, parts: Sequence[Any]) -> list[tf.Tensor]:
    """Return parts whose first vector begins with an int64 vector, bit by bit."""
    vector, *others = parts
    return [tf.concat([tf.reshape(tf.bitcast(answer, tf.float32), [-1]), vector], 0), *others]


def without_answer(parts: Sequence[Any], size: int) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the int64 vector of a size that was put before parts, and the parts."""
    vector, *others = parts
    bits = tf.reshape(vector[: 2 * size], [size, 2])
    return tf.bitcast(bits, tf.int64), [vector[2 * size :], *others]
