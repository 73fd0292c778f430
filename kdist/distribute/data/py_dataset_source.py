"""A keras.utils.PyDataset: the user's own batches, by index."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute.data.array_source import as_weights
from kdist.distribute.data.class_weights import (
    check_class_weight,
    class_weight_rows,
    combined,
)
from kdist.distribute.data.elements import own_block
from kdist.distribute.data.labels import LabelRule, refuse_wrong_labels
from kdist.distribute.data.nests import as_array, map_named, split_part
from kdist.distribute.data.order import permuted
from kdist.distribute.data.source import (
    DataSettings,
    map_plain,
    num_prefetched,
    pass_by_pass,
    read_ahead,
)
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError


class PyDatasetSource:
    """A part with batches of its own; see `BatchSource`.

    Its own batch size counts. With `data.shuffle` the order of its batches changes from pass to
    pass. Batches are read by as many threads as `PyDataset.workers` says; its epoch hooks are
    called between passes, when no batch is being read.
    """

    kind = "py_dataset"
    num_examples = None
    rows_per_batch = None

    def __init__(
        self,
        py_dataset: keras.utils.PyDataset,
        *,
        settings: DataSettings,
        class_weight: Any,
        key: str,
    ) -> None:
        """Assign; `py_dataset_source` checks first."""
        self.warnings: tuple[str, ...] = ()
        self.batches_per_pass: int | None = py_dataset.num_batches
        self.element_spec: Any = None
        self._rules: Sequence[LabelRule] = ()
        self._py_dataset = py_dataset
        self._settings = settings
        self._class_weight = class_weight
        self._key = key

    def read(self, batch_index: int) -> Any:
        """Return one of the user's batches as a numpy nest `(x, y, sample_weight)`.

        Raises:
            ConfigError: If it is no batch, or its labels are not what the losses take.
        """
        key = f"{self._key}[{batch_index}]"
        batch = self._py_dataset[batch_index]
        x, y, weights = split_part(batch if isinstance(batch, tuple | list) else (batch,), key)
        x, y = (map_named(as_array, part, key) for part in (x, y))
        weights = map_named(as_weights, weights, f"{key} sample_weight")
        if self._class_weight is not None:
            check_class_weight(self._class_weight, y, key)
            weights = combined(class_weight_rows(y, self._class_weight), weights)
        if len({len(array) for array in tf.nest.flatten((x, y, weights))}) != 1:
            shapes = ", ".join(str(a.shape) for a in tf.nest.flatten((x, y, weights)))
            raise ConfigError(
                f"All arrays of {key} must have the same number of rows. Received: {shapes}."
            )
        refuse_wrong_labels(y, self._rules, key)
        return x, y, weights

    def first_batch(self, max_rows: int) -> Any:
        """Return the first rows of the user's first batch, a numpy nest."""
        return tf.nest.map_structure(lambda a: a[:max_rows], self.read(0))

    def expect_labels(self, rules: Sequence[LabelRule]) -> None:
        """Check those of the first batch; see `BatchSource`."""
        self._rules = rules
        self.read(0)

    def dataset(
        self, first_batch: int, share: WorkerShare, *, repeat: bool, stride: int = 1
    ) -> tf.data.Dataset:
        """Return this worker's blocks of the batches from `first_batch` on; see `BatchSource`."""
        num_threads = max(1, self._py_dataset.workers)
        per_pass = self.batches_per_pass

        def element(batch_index: Any) -> Any:
            return own_block(self._read_op(batch_index), share)

        def one_pass(pass_index: Any, indices: tf.data.Dataset) -> tf.data.Dataset:
            call = tf.numpy_function(between_passes, [pass_index], tf.int64)
            with tf.control_dependencies([call]):
                return map_plain(indices, element, num_threads)

        def between_passes(pass_index: Any) -> Any:
            if pass_index > first_batch // (per_pass or 1):
                self._py_dataset.on_epoch_end()
            self._py_dataset.on_epoch_begin()
            return pass_index

        if per_pass is None:
            indices = tf.data.Dataset.range(first_batch, tf.int64.max, stride)
            batches = map_plain(indices, element, num_threads)
        else:
            batches = pass_by_pass(
                one_pass,
                first_batch=first_batch,
                batches_per_pass=per_pass,
                repeat=repeat,
                stride=stride,
            )
        batch_bytes = sum(a.nbytes for a in tf.nest.flatten(self.first_batch(1 << 30)))
        return read_ahead(batches, num_prefetched(batch_bytes))

    def read_at(self, batch_index: int) -> list[np.ndarray]:
        """Return batch `batch_index`, counted over all passes, in any order: flat, with its rows.

        The epoch hooks are the caller's: see `between_passes`.

        Raises:
            ConfigError: If it does not look like the other batches.
        """
        per_pass = self.batches_per_pass
        own_index = batch_index
        if per_pass is not None:
            pass_index, own_index = divmod(batch_index, per_pass)
            if self._settings.shuffle:
                position = tf.constant([own_index], tf.int64)
                order = permuted(position, per_pass, self._settings.seed, tf.constant(pass_index))
                own_index = int(order[0])
        arrays = self._read_flat(own_index)
        return [*arrays, np.asarray(len(arrays[0]), np.int64)]

    def between_passes(self, *, is_first: bool) -> None:
        """Call the dataset's epoch hooks; no batch may be read meanwhile."""
        if not is_first:
            self._py_dataset.on_epoch_end()
        self._py_dataset.on_epoch_begin()

    @property
    def num_threads(self) -> int:
        """Return how many threads may read."""
        return max(1, self._py_dataset.workers)

    def _read_op(self, batch_index: Any) -> Any:
        per_pass = self.batches_per_pass
        own_index = batch_index
        if per_pass is not None:
            pass_index, own_index = batch_index // per_pass, batch_index % per_pass
            if self._settings.shuffle:
                seed = self._settings.seed
                own_index = permuted(own_index[None], per_pass, seed, pass_index)[0]
        specs = tf.nest.flatten(self.element_spec)
        flat = tf.numpy_function(self._read_flat, [own_index], [spec.dtype for spec in specs])
        for tensor, spec in zip(flat, specs, strict=True):
            tensor.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(self.element_spec, flat)

    def _read_flat(self, batch_index: Any) -> list[np.ndarray]:
        batch = self.read(int(batch_index))
        specs, arrays = tf.nest.flatten(self.element_spec), tf.nest.flatten(batch)
        found = ", ".join(f"{a.dtype} {a.shape}" for a in arrays)
        if len(arrays) != len(specs) or not all(
            spec.shape.is_compatible_with(a.shape) and _is_type(a, spec.dtype)
            for a, spec in zip(arrays, specs, strict=True)
        ):
            wanted = ", ".join(f"{spec.dtype.name} {spec.shape}" for spec in specs)
            raise ConfigError(
                f"All batches of {self._key} must look alike. Received: batch {int(batch_index)} "
                f"with {found}, where the first ones have {wanted}."
            )
        return arrays


def py_dataset_source(
    py_dataset: keras.utils.PyDataset, *, settings: DataSettings, class_weight: Any, key: str
) -> PyDatasetSource:
    """Return the source of a PyDataset; reads its first two batches.

    Raises:
        ConfigError: If it is empty, has no end and no steps_per_epoch, or returns no batches.
    """
    num_batches = py_dataset.num_batches
    if num_batches is None and settings.steps_per_epoch is None:
        raise ConfigError(
            f"{key} has no end, so an epoch needs a length. Received: a PyDataset without "
            "length, steps_per_epoch=None. Set steps_per_epoch."
        )
    if num_batches == 0:
        raise ConfigError(f"{key} has no rows. Received: a PyDataset of length 0.")
    source = PyDatasetSource(py_dataset, settings=settings, class_weight=class_weight, key=key)
    seen = [source.read(index) for index in range(min(2, num_batches or 2))]
    try:
        source.element_spec = tf.nest.map_structure(_common_spec, *seen)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"All batches of {key} must look alike. Received: {error}".splitlines()[0]
        ) from error
    found = []
    if settings.share.num_workers > 1 and settings.batch_is_global:
        found.append(f"Each worker reads all of {key} and trains on its part of each batch.")
    if getattr(py_dataset, "use_multiprocessing", False):
        found.append(f"{key} is read by threads: use_multiprocessing is not used.")
    source.warnings = tuple(found)
    return source


def _common_spec(*arrays: np.ndarray) -> tf.TensorSpec:
    shapes = [tf.TensorShape([None, *array.shape[1:]]) for array in arrays]
    shape = shapes[0]
    for other in shapes[1:]:
        shape = shape.most_specific_compatible_shape(other)
    is_string = arrays[0].dtype.kind in "USO"
    return tf.TensorSpec(shape, tf.string if is_string else tf.as_dtype(arrays[0].dtype))


def _is_type(array: np.ndarray, dtype: Any) -> bool:
    if dtype == tf.string:
        return array.dtype.kind in "USO"
    return array.dtype == dtype.as_numpy_dtype
