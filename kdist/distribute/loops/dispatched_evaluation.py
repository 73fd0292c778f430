"""Evaluation under a coordinator: whole batches, dealt to whichever worker is free.

A dispatch carries the ids of its batches, and the first server adds each id's sums once. So a
dispatch that runs again because its worker was lost counts nothing twice.
"""

import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.data.array_source import ArraySource
from kdist.distribute.data.source import BatchSource
from kdist.distribute.loops.inner_loop import NextBatches
from kdist.distribute.loops.resident_data import ResidentData
from kdist.distribute.servers.server_step import ServerStep
from kdist.distribute.shares import WorkerShare

# Batches that are sent ahead of the workers, for each of them where they train.
FED_AHEAD = 4


class DispatchedEvaluation:
    """Evaluates on the workers of a coordinator."""

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        step: ServerStep,
        data: ResidentData,
        *,
        num_workers: int,
    ):
        """Hold the parts; nothing is traced yet.

        Args:
            coordinator: Runs dispatches.
            step: Evaluates a batch on a worker.
            data: What workers keep.
            num_workers: Workers to deal batches to.
        """
        self._coordinator = coordinator
        self._step = step
        self._data = data
        self._num_workers = num_workers
        self._functions: dict[int, Any] = {}
        self._num_evaluated = 0

    def run(
        self,
        source: BatchSource,
        num_batches: int | None,
        next_batches: NextBatches,
        wait: Callable[[], None],
    ) -> np.ndarray:
        """Return the exact sums over the first batches of a pass; see `InnerLoop.evaluate`.

        Args:
            source: The data.
            num_batches: Batches to use; `None` for all.
            next_batches: Asked while batches are left, with nothing under way.
            wait: Waits for everything that has been dispatched.
        """
        store = self._step.store
        self._step.trace_evaluation(source.element_spec)
        store.evaluation_sums.assign(tf.zeros_like(store.evaluation_sums))
        deal = self._schedule if self._data.holds(source) else self._sender(source, wait)
        limit = sys.maxsize if num_batches is None else num_batches
        if source.batches_per_pass is not None:
            limit = min(limit, source.batches_per_pass)
        done, is_left = 0, True
        while is_left and done < limit and (wanted := next_batches(done)):
            size = min(limit - done, -(-wanted // self._num_workers) * self._num_workers)
            dealt = deal(source, done, size)
            wait()
            done, is_left = done + dealt, dealt == size
        self._num_evaluated += done
        return store.evaluation_sums.numpy()

    def _schedule(self, source: BatchSource, first: int, num_batches: int) -> int:
        """Deal batches by their numbers; return how many."""
        if id(source) not in self._functions:
            self._functions[id(source)] = self._traced(source)
        iterator = self._data.iterator(source)
        size = max(1, -(-num_batches // (4 * self._num_workers)))
        end = first + num_batches
        for start in range(first, end, size):
            self._coordinator.schedule(
                self._functions[id(source)],
                args=(iterator, *as_int64(start, min(size, end - start), self._num_evaluated)),
            )
        return num_batches

    def _sender(self, source: BatchSource, wait: Callable[[], None]) -> Callable[..., int]:
        """Return what reads on the chief, sends each batch along, and returns how many it found."""
        if id(source) not in self._functions:
            self._functions[id(source)] = self._traced_for_sent()
        iterator = self._data.iterator(None)
        batches = iter(source.dataset(0, WorkerShare(), repeat=False))

        def send(source: BatchSource, first: int, num_batches: int) -> int:
            num_sent = 0
            for batch in islice(batches, num_batches):
                evaluation_id = as_int64(self._num_evaluated + first + num_sent)
                self._coordinator.schedule(
                    self._functions[id(source)], args=(iterator, *evaluation_id, batch)
                )
                num_sent += 1
                if num_sent % FED_AHEAD == 0:
                    wait()
            return num_sent

        return send

    def _traced(self, source: BatchSource) -> Any:
        @tf.function
        def dispatch(
            iterator: Any, first: tf.Tensor, num_batches: tf.Tensor, base: tf.Tensor
        ) -> tf.Tensor:
            arrays, frozen = self._data.open(iterator)
            values = self._step.values_to_evaluate(frozen)
            for index in tf.range(num_batches):
                batch = gathered(source, arrays, first + index)
                self._step.evaluate(base + first + index, values, batch)
            return tf.constant(0)

        return dispatch

    def _traced_for_sent(self) -> Any:
        @tf.function
        def dispatch(iterator: Any, evaluation_id: tf.Tensor, batch: Any) -> tf.Tensor:
            values = self._step.values_to_evaluate(self._data.open(iterator)[1])
            self._step.evaluate(evaluation_id, values, batch)
            return tf.constant(0)

        return dispatch


@tf.autograph.experimental.do_not_convert
def gathered(source: BatchSource, arrays: Any, batch_index: tf.Tensor) -> Any:
    """Return batch `batch_index` with its number of rows, from arrays that a worker keeps."""
    assert isinstance(source, ArraySource)
    rows = source.rows_of(batch_index)
    return (*source.gather(arrays, rows), tf.shape(rows, out_type=tf.int64)[0])


def as_int64(*values: int) -> tuple[tf.Tensor, ...]:
    """Return scalars, in the form that functions are called with: another number traces nothing."""
    return tuple(tf.constant(value, tf.int64) for value in values)
