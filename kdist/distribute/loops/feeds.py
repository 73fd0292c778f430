"""How batches get into a call of several steps: read inside the graph, or handed in as a run."""

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from kdist.distribute.data.array_source import ArraySource
from kdist.distribute.data.runs import block_bounds, runs_of
from kdist.distribute.data.source import BatchSource
from kdist.distribute.shares import WorkerShare


class Feed(Protocol):
    """Hands a training loop its worker's blocks of the global batches, in order."""

    def take(self, first_step: int, max_steps: int) -> tuple[int, tuple[Any, ...]]:
        """Return how many steps to run in one call, 1 to `max_steps`, and the call's arguments."""
        ...

    def signature(self) -> tuple[Any, ...] | None:
        """Return the specs of the arguments, or `None` where they cannot be named."""
        ...

    def reader(self, *arguments: Any) -> Callable[[tf.Tensor], Any]:
        """Return what yields the batch of each step of a call, while tracing.

        It takes an int64 scalar, the step's place in the call, and returns the tensors `(x, y,
        sample_weight, num_global_rows)`.
        """
        ...


def feed_of(source: BatchSource, share: WorkerShare) -> Feed:
    """Return the feed that suits a source."""
    if isinstance(source, ArraySource):
        return RunFeed(source, share)
    return IteratorFeed(source, share)


class IteratorFeed:
    """Each step reads the next element of an iterator."""

    def __init__(self, source: BatchSource, share: WorkerShare):
        """Read nothing yet."""
        self._source = source
        self._share = share
        self._iterator: Any = None
        self._next_step = 0

    def take(self, first_step: int, max_steps: int) -> tuple[int, tuple[Any, ...]]:
        """Return `max_steps` and the iterator; see `Feed.take`."""
        if self._iterator is None or first_step != self._next_step:
            self._iterator = iter(self._source.dataset(first_step, self._share, repeat=True))
        self._next_step = first_step + max_steps
        return max_steps, (self._iterator,)

    def signature(self) -> None:
        """Return nothing: an iterator's spec is found from the iterator."""

    def reader(self, *arguments: Any) -> Callable[[tf.Tensor], Any]:
        """Return a function that reads the iterator's next element."""
        (iterator,) = arguments
        return lambda _: next(iterator)


class RunFeed:
    """A call gets a run of batches, and each step cuts its own out of it."""

    def __init__(self, source: ArraySource, share: WorkerShare):
        """Read nothing yet."""
        self._source = source
        self._share = share
        self._runs: Any = None
        self._run: Any = None
        self._num_left = 0
        self._position = 0
        self._next_step = 0

    def take(self, first_step: int, max_steps: int) -> tuple[int, tuple[Any, ...]]:
        """Return the steps that are left of a run, at most, with the run; see `Feed.take`."""
        if self._runs is None or first_step != self._next_step:
            self._runs = iter(runs_of(self._source, first_step, self._share))
            self._num_left = 0
        if not self._num_left:
            self._run = next(self._runs)
            self._num_left, self._position = int(self._run[-1].shape[0]), 0
        size = min(max_steps, self._num_left)
        arguments = (self._run, tf.constant(self._position, tf.int64))
        self._num_left -= size
        self._position += size
        self._next_step = first_step + size
        return size, arguments

    def signature(self) -> tuple[Any, ...]:
        """Return the specs of a run and of the position of its next batch."""
        num_rows = tf.TensorSpec([None], tf.int64)
        return (*self._source.element_spec, num_rows), tf.TensorSpec([], tf.int64)

    def reader(self, *arguments: Any) -> Callable[[tf.Tensor], Any]:
        """Return a function that cuts batches out of the run, from the position on."""
        (*rows, num_global_rows), position = arguments
        lo, hi = block_bounds(num_global_rows, self._share)

        def batch_of(step: tf.Tensor) -> Any:
            batch = position + step
            block = slice(lo[batch], hi[batch])
            return (*tf.nest.map_structure(lambda leaf: leaf[block], rows), num_global_rows[batch])

        return batch_of
