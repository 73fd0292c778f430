"""What each worker keeps for a whole training: arrays, and values that no step writes."""

from typing import Any

import tensorflow as tf

from kdist.distribute.data.array_source import ArraySource
from kdist.distribute.data.source import BatchSource
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.servers.server_store import ServerStore
from kdist.distribute.store.replicated_store import fingerprint

# What is kept travels inside a graph, whose limit is 2 GB.
RESIDENT_BYTES = 1 << 30


class ResidentData:
    """Per-worker iterators over `(arrays, frozen values)`. Used by the coordinator."""

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        structure: ModelStructure,
        store: ServerStore,
    ):
        """Send nothing yet."""
        self._coordinator = coordinator
        self._structure = structure
        self._store = store
        self._iterators: dict[int, Any] = {}
        self._model_reads = -1
        self._fingerprint: list[int] = []

    def holds(self, source: BatchSource) -> bool:
        """Return whether a source's arrays are few enough to be kept by every worker."""
        frozen_bytes = sum(v.numpy().nbytes for v in self._structure.frozen)
        return isinstance(source, ArraySource) and source.num_bytes + frozen_bytes <= RESIDENT_BYTES

    def iterator(self, source: BatchSource | None) -> Any:
        """Return the workers' iterator for a source's arrays; `None` for frozen values only.

        A data set that repeats one element hands out the same buffers again and again. It is made
        once, and again after a callback wrote one of the frozen variables.
        """
        frozen = self._structure.frozen
        if self._model_reads != self._store.num_model_reads:
            self._model_reads = self._store.num_model_reads
            current = fingerprint(frozen)
            if current != self._fingerprint:
                self._fingerprint = current
                self._iterators.clear()
        if id(source) not in self._iterators:
            values = tuple(v.numpy() for v in frozen)
            arrays = source.arrays if isinstance(source, ArraySource) else ()

            def dataset() -> tf.data.Dataset:
                return tf.data.Dataset.from_tensors((arrays, values, 0)).repeat()

            self._iterators[id(source)] = iter(self._coordinator.create_per_worker_dataset(dataset))
        return self._iterators[id(source)]

    @staticmethod
    def open(iterator: Any) -> tuple[Any, Any]:
        """Return (arrays, frozen values), inside a worker's graph."""
        arrays, frozen, _ = next(iterator)
        return arrays, frozen
