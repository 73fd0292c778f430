"""How a worker that is its own client reads the batches of the ids that it has taken."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from kdist.distribute.aggregation.share_step import ArrayReader, BatchReader, SentReader
from kdist.distribute.data.array_source import ArraySource
from kdist.distribute.data.py_dataset_source import PyDatasetSource
from kdist.distribute.data.source import BatchSource
from kdist.distribute.shares import WorkerShare
from kdist.distribute.values import write
from kdist.errors import ConfigError, TrainingError

# Batches that are read while others are computed.
_AHEAD = 8
_PLAIN = tf.autograph.experimental.do_not_convert


class LocalData(Protocol):
    """Batches by id; made in the worker's graph."""

    unit_limit: int | None
    variables: list[tf.Variable]
    feeds: list[tf.Tensor]

    def load(self) -> None:
        """Put what the worker keeps into its session."""
        ...

    def batch(self, batch_id: tf.Tensor) -> Any:
        """Return `(x, y, sample_weight, num_rows)` of an id, while the graph is built."""
        ...

    def reader(self) -> BatchReader:
        """Return what reads shares of batches, while the graph is built."""
        ...

    def expect(self, end: int) -> None:
        """Say that `fed` will be asked for all ids before `end`."""
        ...

    def fed(self, batch_id: int) -> list[Any]:
        """Return the values of `feeds` for a call that begins with an id."""
        ...


class KeptArrays:
    """Arrays that the worker's server keeps; any batch is gathered from them."""

    unit_limit: int | None = None

    def __init__(self, source: ArraySource, device: str):
        """Create variables for the arrays."""
        self._source = source
        self.feeds: list[tf.Tensor] = []
        with tf.device(device):
            self._arrays = tf.nest.map_structure(_empty, _numpy_arrays(source.arrays))
        self.variables = tf.nest.flatten(self._arrays)

    def load(self) -> None:
        """Put the arrays into the session."""
        arrays = tf.nest.flatten(_numpy_arrays(self._source.arrays))
        for variable, array in zip(self.variables, arrays, strict=True):
            write(variable, array)

    @_PLAIN
    def batch(self, batch_id: tf.Tensor) -> Any:
        """Return a batch's rows, in its order."""
        rows = self._source.rows_of(batch_id)
        num_rows = tf.shape(rows, out_type=tf.int64)[0]
        return (*self._source.gather(self._arrays, rows), num_rows)

    def reader(self) -> BatchReader:
        """Return what gathers shares from the arrays."""
        return ArrayReader(self._source, self._arrays)

    def expect(self, end: int) -> None:
        """Nothing can be read ahead."""

    def fed(self, batch_id: int) -> list[Any]:
        """Nothing needs to be handed in."""
        del batch_id
        return []


class FedBatches:
    """Batches that this process reads and hands in, one with each call.

    Every worker reads all batches, and leaves out those of ids that others have taken.
    """

    unit_limit: int | None = 1

    def __init__(self, source: BatchSource, share: WorkerShare):
        """Create placeholders for a batch.

        Args:
            source: Batches in order.
            share: This worker's place, for data that each worker batches by itself.
        """
        self._source = source
        self._share = share if source.kind == "per_worker" else WorkerShare()
        self._skips = source.kind != "per_worker"
        self.variables: list[tf.Variable] = []
        self._spec = (*source.element_spec, tf.TensorSpec([], tf.int64))
        self.feeds = [
            tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in tf.nest.flatten(self._spec)
        ]
        self._batches: Iterator[Any] | None = None
        self._next_id = 0
        self._last: list[Any] | None = None

    def load(self) -> None:
        """Nothing is kept."""

    def batch(self, batch_id: tf.Tensor) -> Any:
        """Return the batch that is handed in."""
        del batch_id
        return tf.nest.pack_sequence_as(self._spec, self.feeds)

    def reader(self) -> BatchReader:
        """Return what cuts shares out of the batch that is handed in."""
        return SentReader(self.batch(tf.constant(0, tf.int64)))

    def expect(self, end: int) -> None:
        """The data set reads ahead by itself."""

    def fed(self, batch_id: int) -> list[Any]:
        """Read on, to the batch of an id; the last one may be asked for again."""
        if self._skips and self._last is not None and batch_id == self._next_id - 1:
            return self._last
        if self._batches is None or (self._skips and batch_id < self._next_id):
            first = batch_id if self._skips else 0
            dataset = self._source.dataset(first, self._share, repeat=True)
            self._batches, self._next_id = iter(dataset), first
        batch = next(self._batches)
        while self._skips and self._next_id < batch_id:
            batch = next(self._batches)
            self._next_id += 1
        self._next_id = batch_id + 1
        self._last = [np.asarray(leaf) for leaf in tf.nest.flatten(batch)]
        return self._last


class IndexedBatches(FedBatches):
    """Batches that can be read in any order: each worker reads its own ones, a few ahead."""

    def __init__(self, source: PyDatasetSource, share: WorkerShare):
        """Create placeholders for a batch."""
        super().__init__(source, share)
        self._indexed = source
        self._pool = ThreadPoolExecutor(source.num_threads)
        self._reading: dict[int, Future[list[np.ndarray]]] = {}
        self._pass: int | None = None
        self._end = 0

    def expect(self, end: int) -> None:
        """Remember how far to read ahead."""
        self._end = end

    def fed(self, batch_id: int) -> list[Any]:
        """Return the batch of an id; the next ones are begun to be read.

        Raises:
            TrainingError: If it does not look like the first ones, or its labels are wrong.
        """
        per_pass = self._indexed.batches_per_pass or 1 << 62
        pass_index = batch_id // per_pass
        if pass_index != self._pass:
            wait(self._reading.values())
            self._reading.clear()
            self._indexed.between_passes(is_first=self._pass is None)
            self._pass = pass_index
        end = min(max(self._end, batch_id + 1), (pass_index + 1) * per_pass, batch_id + _AHEAD)
        for each in range(batch_id, end):
            if each not in self._reading:
                self._reading[each] = self._pool.submit(self._indexed.read_at, each)
        for done in [each for each in self._reading if each < batch_id]:
            del self._reading[done]
        try:
            return self._reading[batch_id].result()
        except ConfigError as error:  # The first batches were right: it is no setting any more.
            raise TrainingError(str(error)) from error


def local_data(source: BatchSource, share: WorkerShare, device: str) -> LocalData:
    """Return what reads a source's batches on one worker."""
    if isinstance(source, ArraySource):
        return KeptArrays(source, device)
    if isinstance(source, PyDatasetSource):
        return IndexedBatches(source, share)
    return FedBatches(source, share)


def _empty(array: np.ndarray) -> tf.Variable:
    dtype = tf.string if array.dtype.kind in "USO" else array.dtype
    return tf.Variable(tf.zeros(array.shape, dtype), trainable=False)


def _numpy_arrays(arrays: Any) -> Any:
    return tf.nest.map_structure(np.asarray, arrays)
