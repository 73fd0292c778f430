"""What the engine may ask of data, whatever form it came in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow as tf

from kdist.distribute.data.labels import LabelRule
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How kdist reads a part.

    Attributes:
        batch_size: Rows of a global batch.
        shuffle: Whether each pass has an order of its own.
        seed: What the orders depend on; the same in every task.
        cache_bytes: Up to this size a finite tf.data.Dataset is held in memory.
        steps_per_epoch: What the user asked for; needed for data without end.
        share: This task's place among the workers.
        batch_is_global: Whether the batches of all workers make an update together; where they do
            not, each worker's is an update of its own.
        is_for_training: Whether the part is trained on, and not only evaluated.
    """

    batch_size: int = 64
    shuffle: bool = True
    seed: int = 0
    cache_bytes: int = 1 << 30
    steps_per_epoch: int | None = None
    share: WorkerShare = field(default_factory=WorkerShare)
    batch_is_global: bool = True
    is_for_training: bool = True

    def __post_init__(self) -> None:
        """Refuse sizes that no run could use."""
        if self.batch_size < 1:
            raise ConfigError(f"data.batch_size must be at least 1. Received: {self.batch_size}.")
        if self.cache_bytes < 0:
            raise ConfigError(
                f"data.cache_bytes must not be negative. Received: {self.cache_bytes}."
            )


class BatchSource(Protocol):
    """Global batches by index.

    Attributes:
        kind: "arrays", "stream", "py_dataset" or "per_worker".
        num_examples: Rows of a pass; `None` if unknown or without end.
        batches_per_pass: Batches of a pass; `None` if unknown or without end.
        rows_per_batch: Rows of every global batch; `None` if they differ or nobody knows.
        element_spec: Nest of `tf.TensorSpec` of `(x, y, sample_weight)`, batch axis `None`;
            `y` and `sample_weight` are `()` where there is none.
        warnings: What a user should know; each is a sentence for result.json.
    """

    kind: str

    @property
    def num_examples(self) -> int | None: ...  # noqa: D102

    @property
    def batches_per_pass(self) -> int | None: ...  # noqa: D102

    @property
    def rows_per_batch(self) -> int | None: ...  # noqa: D102

    @property
    def element_spec(self) -> Any: ...  # noqa: D102

    @property
    def warnings(self) -> tuple[str, ...]: ...  # noqa: D102

    def first_batch(self, max_rows: int) -> Any:
        """Return up to `max_rows` rows as a numpy nest `(x, y, sample_weight)`.

        For building and checking a model; which rows they are does not depend on the shuffle.
        """
        ...

    def expect_labels(self, rules: Sequence[LabelRule]) -> None:
        """Check the labels that are at hand, and from now on those of batches that are read.

        Args:
            rules: One for each compiled loss of the model.

        Raises:
            ConfigError: If labels at hand cannot be trained on.
        """
        ...

    def dataset(
        self, first_batch: int, share: WorkerShare, *, repeat: bool, stride: int = 1
    ) -> tf.data.Dataset:
        """Return `(x, y, sample_weight, num_global_rows)` elements.

        Element `i` is this worker's block (see `kdist.distribute.shares`) of global batch
        `first_batch + i * stride`; `num_global_rows` (int64) are the rows of that global batch.
        Of a "per_worker" source it is the worker's own batch, whole, and its own rows.

        Args:
            first_batch: Index of the first batch, counted over all passes.
            share: The worker that reads. `WorkerShare()` reads whole batches.
            repeat: Whether passes follow each other without end; otherwise the elements end with
                the pass that `first_batch` is in.
            stride: How far the batches of two elements lie apart (asynchronous workers that share
                out whole batches).
        """
        ...


def map_plain(dataset: tf.data.Dataset, function: Any, num_threads: int = 0) -> tf.data.Dataset:
    """Map a function of TensorFlow operations, in order; Python in it is not rewritten.

    Args:
        dataset: What to map.
        function: Takes the parts of an element.
        num_threads: Threads that run the function; 0 runs it in the thread that reads.
    """
    function = tf.autograph.experimental.do_not_convert(function)
    if not num_threads:
        return dataset.map(function, synchronous=True)
    return dataset.map(function, num_parallel_calls=num_threads, deterministic=True)


def pass_by_pass(
    one_pass: Callable[[Any, tf.data.Dataset], tf.data.Dataset],
    *,
    first_batch: int,
    batches_per_pass: int,
    repeat: bool,
    stride: int,
) -> tf.data.Dataset:
    """Return the elements of one pass after the other; a pass is begun when the last one is done.

    Args:
        one_pass: Takes a pass's index (int64 scalar tensor) and the dataset of its batch indices,
            counted over all passes; returns the elements.
        first_batch: Where to begin, counted over all passes.
        batches_per_pass: Batches of a pass.
        repeat: Whether to go on after the first pass, without end.
        stride: How far the batches of two elements lie apart.
    """

    def elements(pass_index: Any) -> tf.data.Dataset:
        lo = tf.maximum(pass_index * batches_per_pass, first_batch)
        lo += (first_batch - lo) % stride
        end = (pass_index + 1) * batches_per_pass
        return one_pass(pass_index, tf.data.Dataset.range(lo, end, stride))

    first_pass = first_batch // batches_per_pass
    passes = tf.data.Dataset.range(first_pass, tf.int64.max if repeat else first_pass + 1)
    return passes.flat_map(tf.autograph.experimental.do_not_convert(elements))


def num_prefetched(batch_bytes: int) -> int:
    """Return how many batches to read ahead: many small ones, few large ones."""
    return max(2, min(16, (64 << 20) // max(batch_bytes, 1)))


def read_ahead(dataset: tf.data.Dataset, num_batches: int) -> tf.data.Dataset:
    """Read ahead in one background thread, in order, without tuning threads of its own.

    The tuner costs more than it brings on elements this cheap (measured: 54 against 71
    microseconds a batch of 64 digits).
    """
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(num_batches).with_options(options)
