"""Who contributed which update, and how old its gradients were: counted on the first server.

The age of a gradient is its staleness: how many updates the first server applied between the
moment when a worker began to read parameters and the moment when it applied what came of them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from kdist.distribute.values import to_numpy

# Contributions that are remembered one by one, the newest ones.
NUM_RECENT = 1024
# Ages that are counted one by one; the last place counts everything older.
NUM_AGES = 256
NUM_WORKERS = 1024


class Contribution(NamedTuple):
    """One worker's part of an update.

    Attributes:
        update: The update, counted since the store was made (asynchronous) or the step.
        unit: The batch (asynchronous), or the share: share `unit % N` of batch `unit // N`.
        worker: Index of the worker that computed it.
        staleness: Its age in updates.
    """

    update: int
    unit: int
    worker: int
    staleness: int


@dataclass(frozen=True, kw_only=True)
class ContributionFacts:
    """What has been counted since the store was made.

    Attributes:
        num_taken: Contributions that reached the model.
        num_dropped: Contributions that were refused because they were too old.
        mean_staleness: Of those taken; 0 if there are none.
        max_staleness: The same.
        histogram: Contributions taken by staleness; what is older than the last age counts there.
        by_worker: Contributions taken by worker.
        recent: The newest ones, in order.
    """

    num_taken: int
    num_dropped: int
    mean_staleness: float
    max_staleness: int
    histogram: dict[int, int]
    by_worker: dict[int, int]
    recent: tuple[Contribution, ...]


class Contributions:
    """Counters on the first server; what builds operations is called under its lock."""

    def __init__(self) -> None:
        """Create the variables on the current device."""
        self._counts = _zeros([4])  # taken, dropped, sum of ages, largest age
        self._by_age = _zeros([NUM_AGES])
        self._by_worker = _zeros([NUM_WORKERS])
        self._recent = _zeros([NUM_RECENT, 4])

    def take(self, *, update: Any, unit: Any, worker: Any, staleness: Any) -> None:
        """Count a contribution that reaches the model; all arguments are int64 scalars."""
        taken, dropped, total, largest = tf.unstack(tf.convert_to_tensor(self._counts))
        row = [tf.cast(each, tf.int64) for each in (update, unit, worker, staleness)]
        self._recent.scatter_nd_update([[taken % NUM_RECENT]], [row])
        self._by_age.scatter_nd_add([[tf.minimum(row[3], NUM_AGES - 1)]], [1])
        self._by_worker.scatter_nd_add([[row[2] % NUM_WORKERS]], [1])
        counts = [taken + 1, dropped, total + row[3], tf.maximum(largest, row[3])]
        self._counts.assign(tf.stack(counts))

    def drop(self) -> tf.Tensor:
        """Count a contribution that is refused."""
        self._counts.scatter_nd_add([[1]], [1])
        return tf.constant(0)

    def read(self) -> ContributionFacts:
        """Return what has been counted so far."""
        taken, dropped, total, largest = (int(each) for each in to_numpy(self._counts))
        ring = to_numpy(self._recent)
        order = range(max(0, taken - NUM_RECENT), taken)
        return ContributionFacts(
            num_taken=taken,
            num_dropped=dropped,
            mean_staleness=total / taken if taken else 0.0,
            max_staleness=largest,
            histogram=_positive(to_numpy(self._by_age)),
            by_worker=_positive(to_numpy(self._by_worker)),
            recent=tuple(
                Contribution(*(int(each) for each in ring[index % NUM_RECENT])) for index in order
            ),
        )


def _zeros(shape: list[int]) -> tf.Variable:
    return tf.Variable(tf.zeros(shape, tf.int64), trainable=False)


def _positive(counts: Any) -> dict[int, int]:
    return {index: int(count) for index, count in enumerate(counts) if count}
