"""A tf.data.Dataset that is read from its start: too large to hold, or without end."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kdist.distribute.data.elements import (
    batch_specs,
    num_rows_of,
    own_block,
    row_bytes,
    standard_elements,
)
from kdist.distribute.data.labels import LabelRule, refuse_wrong_labels, watched
from kdist.distribute.data.materialize import fresh_reading_errors
from kdist.distribute.data.source import DataSettings, map_plain, num_prefetched, read_ahead
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError

_MAX_SHUFFLED_ROWS = 16_384
_UNKNOWN_ROW_BYTES = 4096


class StreamSource:
    """A part that has no random access; see `BatchSource`.

    Each worker reads the whole stream and takes its rows. A batch that is not the first is
    reached by reading up to it: from its pass's start where the size of a pass is known.
    """

    kind = "stream"

    def __init__(
        self,
        rows: tf.data.Dataset,
        *,
        num_examples: int | None,
        settings: DataSettings,
        class_weight: Any,
        warnings: tuple[str, ...],
        key: str,
    ) -> None:
        """Take a checked dataset of rows `(x, y, sample_weight)`; `stream_source` makes it."""
        self.num_examples = num_examples
        self.warnings = warnings
        self._rows = rows
        self._settings = settings
        self._class_weight = class_weight
        self._key = key
        self._rules: Sequence[LabelRule] = ()
        self._row_bytes = row_bytes(rows.element_spec) or _UNKNOWN_ROW_BYTES
        self.element_spec = batch_specs(self._batched(rows))

    @property
    def batches_per_pass(self) -> int | None:
        """Return the number of batches of a pass, `None` if unknown or without end."""
        if self.num_examples is None:
            return None
        return -(-self.num_examples // self._settings.batch_size)

    @property
    def rows_per_batch(self) -> int | None:
        """Return the rows of every batch, `None` if the last one may have fewer."""
        size = self._settings.batch_size
        return None if self.num_examples is None or self.num_examples % size else size

    @property
    def shuffled_rows(self) -> int:
        """Return the rows among which a row's place is drawn."""
        fitting = self._settings.cache_bytes // (4 * self._row_bytes)
        return max(self._settings.batch_size, min(_MAX_SHUFFLED_ROWS, fitting))

    def first_batch(self, max_rows: int) -> Any:
        """Return the first rows of the stream, a numpy nest.

        Raises:
            ConfigError: If the stream has no rows or cannot be read.
        """
        batches = standard_elements(
            self._rows.batch(max_rows), self._class_weight, self._key, batched=True
        )
        with fresh_reading_errors(self._key):
            for batch in batches.take(1).as_numpy_iterator():
                return batch
        raise ConfigError(f"{self._key} has no rows. Received: an empty tf.data.Dataset.")

    def expect_labels(self, rules: Sequence[LabelRule]) -> None:
        """Check those of the first batch; see `BatchSource`."""
        self._rules = rules
        refuse_wrong_labels(self.first_batch(self._settings.batch_size)[1], rules, self._key)

    def dataset(
        self, first_batch: int, share: WorkerShare, *, repeat: bool, stride: int = 1
    ) -> tf.data.Dataset:
        """Return this worker's blocks of the batches from `first_batch` on; see `BatchSource`."""
        per_pass = self.batches_per_pass
        first_pass, skipped = divmod(first_batch, per_pass) if per_pass else (0, first_batch)
        last_pass = tf.int64.max if repeat else first_pass + 1
        one_pass = tf.autograph.experimental.do_not_convert(self._pass)
        batches = tf.data.Dataset.range(first_pass, last_pass).flat_map(one_pass)
        batches = self._without_ends(batches)
        batches = batches.skip(skipped).shard(stride, 0)
        batches = map_plain(
            batches, lambda *batch: own_block(watched(batch, self._rules, self._key), share)
        )
        return read_ahead(batches, num_prefetched(self._row_bytes * self._settings.batch_size))

    def _pass(self, pass_index: Any) -> tf.data.Dataset:
        """Return the batches of one pass; its order depends on `(seed, pass_index)` alone."""
        rows = self._rows
        if self._settings.shuffle:
            # While a graph is traced this sets the seed of that graph, not the process's: so the
            # order does not depend on what a task has set before. It must not be 0: TensorFlow
            # would look at the value of the other seed, which is a tensor here.
            tf.random.set_seed(self._settings.seed % (2**31 - 2) + 1)
            rows = rows.shuffle(self.shuffled_rows, seed=pass_index)
        batches = self._batched(rows)
        if self.num_examples is not None:
            return batches
        return batches.concatenate(tf.data.Dataset.from_tensors(_empty_batch(self.element_spec)))

    def _without_ends(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Drop the empty batch that marks the end of each pass of unknown size.

        A pass that had no batch at all fails: otherwise a generator that can be read once only
        would be started again and again, without end and without a word.
        """
        if self.num_examples is not None:
            return batches
        message = (
            f"{self._key} gave rows once, but none when it was read again. Let each iteration over "
            "the tf.data.Dataset start anew (a generator function, not a generator)."
        )

        def count(num_batches: Any, batch: Any) -> Any:
            is_end = tf.equal(num_rows_of(batch), 0)
            tf.debugging.assert_equal(is_end & (num_batches == 0), False, message)
            return tf.where(is_end, tf.zeros_like(num_batches), num_batches + 1), batch

        counted = batches.scan(
            tf.zeros([], tf.int64), tf.autograph.experimental.do_not_convert(count)
        )
        return counted.filter(lambda *batch: num_rows_of(batch) > 0)

    def _batched(self, rows: tf.data.Dataset) -> tf.data.Dataset:
        batches = rows.batch(self._settings.batch_size)
        return standard_elements(batches, self._class_weight, self._key, batched=True)


def stream_source(
    rows: tf.data.Dataset, *, settings: DataSettings, class_weight: Any, key: str
) -> StreamSource:
    """Return the source of a dataset of rows `(x, y, sample_weight)` that is not held in memory.

    Raises:
        ConfigError: If it has no end and no steps_per_epoch, or its first batch cannot be read.
    """
    num_rows = int(rows.cardinality())
    if num_rows == tf.data.INFINITE_CARDINALITY and settings.steps_per_epoch is None:
        raise ConfigError(
            f"{key} has no end, so an epoch needs a length. Received: an infinite "
            "tf.data.Dataset, steps_per_epoch=None. Set steps_per_epoch, or leave out .repeat()."
        )
    source = StreamSource(
        rows,
        num_examples=num_rows if num_rows >= 0 else None,
        settings=settings,
        class_weight=class_weight,
        warnings=(),
        key=key,
    )
    source.first_batch(settings.batch_size)
    source.warnings = _warnings(source, settings, num_rows, key)
    return source


def _empty_batch(specs: Any) -> Any:
    return tf.nest.map_structure(
        lambda spec: (
            tf.zeros([size or 0 for size in spec.shape], spec.dtype)
            if spec.dtype != tf.string
            else tf.fill([size or 0 for size in spec.shape], "")
        ),
        specs,
    )


def _warnings(
    source: StreamSource, settings: DataSettings, num_rows: int, key: str
) -> tuple[str, ...]:
    reason = (
        "has no end"
        if num_rows == tf.data.INFINITE_CARDINALITY
        else f"is larger than data.cache_bytes={settings.cache_bytes}"
    )
    found = [f"{key} is read as a stream, since it {reason}."]
    if settings.share.num_workers > 1:
        own = "its part of each batch" if settings.batch_is_global else "the batches that it takes"
        found.append(f"Each worker reads all of {key} and trains on {own}.")
    if settings.shuffle:
        found.append(f"{key} is shuffled within windows of {source.shuffled_rows} rows.")
    return tuple(found)
