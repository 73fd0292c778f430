"""A function of tf.distribute.InputContext: every worker makes its own batches."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kdist.distribute.data.elements import batch_specs, num_rows_of, standard_elements
from kdist.distribute.data.labels import LabelRule, refuse_wrong_labels, watched
from kdist.distribute.data.materialize import fresh_reading_errors
from kdist.distribute.data.source import DataSettings, map_plain, num_prefetched, read_ahead
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError

_ASSUMED_BATCH_BYTES = 8 << 20


class PerWorkerSource:
    """A part whose batches are each worker's own affair; see `BatchSource`.

    An element is the worker's whole batch, and its fourth item is that batch's rows: what the
    other workers read is not known here. Split it among the worker's replicas as a global batch
    of one worker.
    """

    kind = "per_worker"
    num_examples = None
    rows_per_batch = None

    def __init__(
        self,
        make_dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        *,
        class_weight: Any,
        key: str,
        batch_is_global: bool = True,
    ) -> None:
        """Assign; `per_worker_source` checks first."""
        self._batch_is_global = batch_is_global
        self.warnings: tuple[str, ...] = ()
        self.batches_per_pass: int | None = None
        self.element_spec: Any = None
        self._rules: Sequence[LabelRule] = ()
        self._make_dataset = make_dataset
        self._class_weight = class_weight
        self._key = key

    def batches(self, share: WorkerShare) -> tf.data.Dataset:
        """Return a worker's own batches `(x, y, sample_weight)`, one call of the function.

        Raises:
            ConfigError: If the function returns no usable dataset.
        """
        context = tf.distribute.InputContext(
            num_input_pipelines=share.num_workers,
            input_pipeline_id=share.worker_index,
            num_replicas_in_sync=(
                share.num_replicas if self._batch_is_global else share.replicas_per_worker
            ),
        )
        dataset = self._make_dataset(context)
        if not isinstance(dataset, tf.data.Dataset):
            raise ConfigError(
                f"{self._key} is a function that must return a batched tf.data.Dataset. "
                f"Received: {type(dataset).__name__}."
            )
        ranks = [getattr(s, "shape", None) for s in tf.nest.flatten(dataset.element_spec)]
        if any(shape is not None and shape.rank == 0 for shape in ranks):
            raise ConfigError(
                f"{self._key} is a function that must return a batched tf.data.Dataset. "
                f"Received: elements of {dataset.element_spec}. "
                "Batch it, for example with context.get_per_replica_batch_size(...)."
            )
        return standard_elements(dataset, self._class_weight, self._key, batched=True)

    def first_batch(self, max_rows: int) -> Any:
        """Return the first rows that the first of several workers would read, a numpy nest."""
        with fresh_reading_errors(self._key):
            for batch in self.batches(WorkerShare()).take(1).as_numpy_iterator():
                return tf.nest.map_structure(lambda a: a[:max_rows], batch)
        raise ConfigError(f"{self._key} has no rows. Received: an empty tf.data.Dataset.")

    def expect_labels(self, rules: Sequence[LabelRule]) -> None:
        """Check those of the first worker's first batch; see `BatchSource`."""
        self._rules = rules
        refuse_wrong_labels(self.first_batch(1 << 30)[1], rules, self._key)

    def dataset(
        self, first_batch: int, share: WorkerShare, *, repeat: bool, stride: int = 1
    ) -> tf.data.Dataset:
        """Return this worker's own batches from `first_batch` on; see `BatchSource`."""
        batches = self.batches(share)
        if repeat:
            batches = batches.repeat()
        elif self.batches_per_pass is not None:
            first_batch %= self.batches_per_pass
        batches = batches.skip(first_batch).shard(stride, 0)
        counted = map_plain(
            batches,
            lambda *batch: (*watched(batch, self._rules, self._key), num_rows_of(batch)),
        )
        return read_ahead(counted, num_prefetched(_ASSUMED_BATCH_BYTES))


def per_worker_source(
    make_dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset],
    *,
    settings: DataSettings,
    class_weight: Any,
    key: str,
) -> PerWorkerSource:
    """Return the source of a function of InputContext; calls it once for each worker.

    Raises:
        ConfigError: If it takes no context, returns no batched dataset, or workers would have
            different numbers of batches, or none ends, and there is no steps_per_epoch.
    """
    try:
        inspect.signature(make_dataset).bind(None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{key} is a function that must take one argument, a tf.distribute.InputContext. "
            f"Received: {getattr(make_dataset, '__name__', make_dataset)!r} ({error})."
        ) from error
    source = PerWorkerSource(
        make_dataset,
        class_weight=class_weight,
        key=key,
        batch_is_global=settings.batch_is_global,
    )
    share = settings.share
    counts = []
    for worker_index in range(share.num_workers):
        batches = source.batches(
            WorkerShare(
                worker_index=worker_index,
                num_workers=share.num_workers,
                replicas_per_worker=share.replicas_per_worker,
            )
        )
        source.element_spec = batch_specs(batches)
        counts.append(int(batches.cardinality()))
    if len(set(counts)) == 1 and counts[0] >= 0:
        source.batches_per_pass = counts[0]
    if 0 in counts:
        raise ConfigError(f"{key} has no rows for worker {counts.index(0)} of {len(counts)}.")
    if source.batches_per_pass is None and settings.steps_per_epoch is None:
        shown = ", ".join({-1: "without end", -2: "unknown"}.get(c, str(c)) for c in counts)
        raise ConfigError(
            f"{key} must have the same known number of batches on each worker, or "
            f"steps_per_epoch must be set. Received: batches by worker: {shown}."
        )
    its_own = "batch size is its own affair"
    if settings.is_for_training:
        its_own = "batch size, splitting and exact mid-epoch resume are its own affair"
    source.warnings = (f"{key} brings its own batches: {its_own}.",)
    return source
