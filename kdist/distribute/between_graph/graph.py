"""The graph of a worker that is its own client: store, desk, and what the worker runs."""

import contextlib
import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from kdist.distribute.aggregation.share_step import ShareStep
from kdist.distribute.between_graph.copies import Copies, captured_constants, give_constants
from kdist.distribute.between_graph.desk import EVALUATE, TRAIN, TURNS, TicketDesk
from kdist.distribute.between_graph.desk_calls import DeskCalls
from kdist.distribute.between_graph.local_data import local_data
from kdist.distribute.between_graph.seat import Seat
from kdist.distribute.between_graph.turns import ClientAggregation, Shares
from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.data.source import BatchSource
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.servers.server_step import ServerStep
from kdist.distribute.step.signatures import rows_per_share

UNROLLED_STEPS = 10


class WorkerGraph:
    """The operations that one worker runs; those on shared variables mean the same on all workers.

    Attributes:
        graph: What a session runs.
        store, aux: The parameters, and the layout of what rides with gradients.
        desk, desk_calls: The ticket desk, and what this worker runs there.
        frozen, constants: What steps read and never write.
        constant_values: First values of `constants`.
        data: What reads batches, by kind.
        turns: Of synchronous updates; `None` for asynchronous ones.
        unit: Steps of one call of the runtime, at most.
        blocks: Operations by kind and number of ids; they take `first_id` and `base`.
    """

    def __init__(
        self,
        structure: ModelStructure,
        layout: BucketLayout,
        seat: Seat,
        *,
        source: BatchSource,
        validation: BatchSource | None,
        steps_per_call: int,
        jit_compile: bool = False,
        max_staleness: int | None = None,
        shares: Shares | None = None,
    ):
        """Build the graph.

        Args:
            structure: The probed structure of the model.
            layout: Buckets dealt to the parameter servers; the same on all workers.
            seat: This worker.
            source: The training data.
            validation: The validation data, if there is any.
            steps_per_call: Steps in one call of the runtime, at most.
            jit_compile: Whether XLA compiles the compute.
            max_staleness: Most updates that may have been applied since a step began to read;
                what is older is computed again. `None` for any.
            shares: How updates are made of shares; `None` for asynchronous updates.

        Raises:
            ConfigError: If the step reads something that only this process has.
        """
        self.structure = structure
        self.seat = seat
        self.graph = tf.Graph()
        self._numbers = itertools.count()
        self._step = ServerStep(
            structure,
            layout,
            batch_spec=source.element_spec,
            num_rows=rows_per_share(source.rows_per_batch, shares.num_shares if shares else 1),
            jit_compile=jit_compile,
            compute_device=seat.compute_device,
            scope=self._scope,
            max_staleness=max_staleness,
        )
        self.store = self._step.store
        self.aux = self._step.aux
        first_server = self.store.servers[0].device
        sources = {TRAIN: source} | ({} if validation is None else {EVALUATE: validation})
        with self._scope():
            self.desk = TicketDesk(self.store, num_workers=seat.share.num_workers)
            specs = [tf.TensorSpec(v.shape, v.dtype) for v in structure.frozen]
            self.frozen = Copies(specs, server=first_server, worker=seat.device)
            self.data = {
                kind: local_data(each, seat.share, seat.device) for kind, each in sources.items()
            }
        if validation is not None:
            self._step.trace_evaluation(validation.element_spec)
        looked_up = self._step.looked_up
        self.turns = ClientAggregation(self.store, shares, looked_up) if shares else None
        self.unit = min(steps_per_call, self.data[TRAIN].unit_limit or UNROLLED_STEPS)
        functions = self._traced_blocks()
        self.constant_values = captured_constants(list(functions.values()), structure.model)
        with self._scope(), tf.device(seat.device):
            specs = [tf.TensorSpec(c.shape, c.dtype) for c in self.constant_values]
            self.constants = Copies(specs, server=first_server, worker=seat.device)
            give_constants(list(functions.values()), self.constant_values, self.constants.read())
            self.first_id = tf.compat.v1.placeholder(tf.int64, [])
            self.base = tf.compat.v1.placeholder(tf.int64, [])
            self.blocks = {
                key: function(self.first_id, self.base) for key, function in functions.items()
            }
            if self.turns is not None:
                self.turns.build()
            self._build_initializers()
        with self._scope():
            worker = seat.share.worker_index
            self.desk_calls = DeskCalls(self.desk, whole=self.unit, worker_index=worker)

    @contextlib.contextmanager
    def _scope(self) -> Iterator[None]:
        """Create variables in the graph, named by the order in which they are made.

        So all workers mean the same ones; Keras' own names depend on what else a process has made.
        """

        def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
            with self.graph.name_scope(None):
                return next_creator(**{**arguments, "name": f"kdist_{next(self._numbers)}"})

        with (
            self.graph.as_default(),
            self.graph.container(self.seat.container),
            tf.variable_creator_scope(create),
        ):
            yield

    def _traced_blocks(self) -> dict[tuple[int, int], Any]:
        """Return concrete functions of `(first id, base)`, by kind and number of ids."""
        blocks = {}
        if self.turns is not None:
            blocks[TURNS, 1] = self._traced_turns(self.turns)
        for kind, data in self.data.items():
            if kind == TRAIN and self.turns is not None:
                continue
            unit = self.unit if kind == TRAIN else data.unit_limit or UNROLLED_STEPS
            blocks |= {(kind, size): self._traced(kind, size) for size in sorted({unit, 1})}
        return blocks

    def _traced(self, kind: int, size: int) -> Any:
        """Return a concrete function of `(first id, base)` that runs `size` ids in order."""
        data = self.data[kind]

        def train(first: tf.Tensor, base: tf.Tensor) -> tf.Tensor:
            del base
            with tf.device(self.seat.device):
                frozen = self.frozen.read()
                worker = self.seat.share.worker_index
                for index in range(size):
                    batch = data.batch(first + index)
                    self._step.train(first + index, batch, frozen, worker=worker)
                return tf.constant(0)

        def evaluate(first: tf.Tensor, base: tf.Tensor) -> tf.Tensor:
            with tf.device(self.seat.device):
                values = self._step.values_to_evaluate(self.frozen.read())
                for index in range(size):
                    batch = data.batch(first + index)
                    self._step.evaluate(base + first + index, values, batch)
                return tf.constant(0)

        scalar = tf.TensorSpec([], tf.int64)
        function = tf.function(train if kind == TRAIN else evaluate, autograph=False)
        return function.get_concrete_function(scalar, scalar)

    def _traced_turns(self, turns: ClientAggregation) -> Any:
        """Return a concrete function of `(replica, stretch)` that takes all turns of a stretch."""
        share_step = ShareStep(self._step, turns)

        def take_turns(replica: tf.Tensor, stretch: tf.Tensor) -> tf.Tensor:
            with tf.device(self.seat.device):
                frozen, reader = self.frozen.read(), self.data[TRAIN].reader()
                worker = tf.constant(self.seat.share.worker_index, tf.int64)
                share_step.run(replica, stretch, worker, reader, frozen)
                return tf.constant(0)

        scalar = tf.TensorSpec([], tf.int64)
        return tf.function(take_turns, autograph=False).get_concrete_function(scalar, scalar)

    def _build_initializers(self) -> None:
        v1 = tf.compat.v1
        self.refreshed = self.frozen.refresh(), self.constants.refresh()
        local = [v for data in self.data.values() for v in data.variables]
        local += self.frozen.local_variables + self.constants.local_variables
        local_ids = {id(v) for v in local}
        self.shared = [v for v in v1.global_variables() if id(v) not in local_ids]
        self.initialize_local = v1.variables_initializer(local)
        self.initialize_shared = v1.variables_initializer(self.shared)
        self.is_initialized = self.desk.is_ready.is_initialized()

    @property
    def signature(self) -> int:
        """Return a checksum of the shared variables, which all workers must have alike."""
        found = [(str(v.shape), v.dtype.name) for v in self.shared]  # Staged rows have no shape.
        return zlib.crc32(repr(found).encode())
