"""One worker as its own client: a graph of the step, a session, and the tickets that it takes."""

import contextlib
import itertools
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.between_graph.copies import (
    Copies,
    as_arrays,
    captured_constants,
    give_constants,
)
from kdist.distribute.between_graph.desk import (
    EVALUATE,
    TRAIN,
    TURNS,
    Opened,
    Ticket,
    TicketDesk,
    as_ticket,
)
from kdist.distribute.between_graph.local_data import local_data
from kdist.distribute.between_graph.reach import wait_for_servers
from kdist.distribute.between_graph.turns import ClientAggregation, Shares
from kdist.distribute.data.source import BatchSource
from kdist.distribute.layout import BucketLayout
from kdist.distribute.server_step import ServerStep
from kdist.distribute.share_step import ShareStep
from kdist.distribute.shares import WorkerShare
from kdist.distribute.structure import ModelStructure
from kdist.distribute.values import GraphValues, to_numpy, write
from kdist.errors import TaskTimeoutError

UNROLLED_STEPS = 10
# Steps of one ticket: few round trips to the desk, and not much to do again for who is lost.
TICKET_STEPS = 50
_POLL_S = 0.005


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a worker sits.

    Attributes:
        share: Its index among all workers, and their number.
        target: The address of its own TensorFlow server, such as "grpc://127.0.0.1:2222".
        servers: Addresses ("host:port") of the parameter servers by name.
        device: Its device, such as "/job:worker/replica:0/task:0/device:CPU:0".
        compute_device: Where it computes, such as "/device:GPU:0"; `None` for `device`.
        container: Keeps the variables of several trainings on the same servers apart.
    """

    share: WorkerShare
    target: str
    servers: Mapping[str, str]
    device: str
    compute_device: str | None = None
    container: str = "kdist"

    @property
    def device_filters(self) -> list[str]:
        """Return the devices that its session needs: not those of other workers."""
        return ["/job:ps", self.device.rpartition("/device")[0].replace("/replica:0", "")]


class StepWorker:
    """Computes steps and evaluations by ticket. The chief has one, and so has every follower."""

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
        """Build the graph; no session is opened yet.

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
        self._version = -1
        self._session: Any = None
        self._calls: dict[tuple[int, int], Callable[..., Any]] = {}
        self._numbers = itertools.count()
        self._step = ServerStep(
            structure,
            layout,
            batch_spec=source.element_spec,
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
            self._data = {
                kind: local_data(each, seat.share, seat.device) for kind, each in sources.items()
            }
        if validation is not None:
            self._step.trace_evaluation(validation.element_spec)
        self.turns = ClientAggregation(self.store, shares) if shares else None
        self.unit = min(steps_per_call, self._data[TRAIN].unit_limit or UNROLLED_STEPS)
        functions = self._traced_blocks()
        self._constants = captured_constants(list(functions.values()))
        with self._scope(), tf.device(seat.device):
            specs = [tf.TensorSpec(c.shape, c.dtype) for c in self._constants]
            self.constants = Copies(specs, server=first_server, worker=seat.device)
            give_constants(list(functions.values()), self._constants, self.constants.read())
            self._first_id = tf.compat.v1.placeholder(tf.int64, [])
            self._base = tf.compat.v1.placeholder(tf.int64, [])
            self._operations = {
                key: function(self._first_id, self._base) for key, function in functions.items()
            }
            if self.turns is not None:
                self.turns.build()
            self._build_desk_operations()

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
        for kind, data in self._data.items():
            if kind == TRAIN and self.turns is not None:
                continue
            unit = self.unit if kind == TRAIN else data.unit_limit or UNROLLED_STEPS
            blocks |= {(kind, size): self._traced(kind, size) for size in sorted({unit, 1})}
        return blocks

    def _traced(self, kind: int, size: int) -> Any:
        """Return a concrete function of `(first id, base)` that runs `size` ids in order."""
        data = self._data[kind]

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
                frozen, reader = self.frozen.read(), self._data[TRAIN].reader()
                worker = tf.constant(self.seat.share.worker_index, tf.int64)
                share_step.run(replica, stretch, worker, reader, frozen)
                return tf.constant(0)

        scalar = tf.TensorSpec([], tf.int64)
        return tf.function(take_turns, autograph=False).get_concrete_function(scalar, scalar)

    def _build_desk_operations(self) -> None:
        def call(function: Any, *arguments: Any) -> Any:
            return tf.function(function, autograph=False)(*arguments)

        v1 = tf.compat.v1
        self._most, self._unit, self._lo, self._hi = (v1.placeholder(tf.int64, []) for _ in "1234")
        self._fields = v1.placeholder(tf.int64, [len(Opened._fields)])
        self._take = call(self.desk.take, self._most, self._unit)
        self._open = call(self.desk.open, self._fields)
        index = tf.constant(self.seat.share.worker_index, tf.int64)
        self._arrive = call(self.desk.arrive, index)
        self._known = {
            TRAIN: call(self.desk.applied, self._lo, self._hi),
            EVALUATE: call(self.desk.evaluated, self._lo, self._hi),
        }
        self._refreshed = self.frozen.refresh(), self.constants.refresh()
        local = [v for data in self._data.values() for v in data.variables]
        local += self.frozen.local_variables + self.constants.local_variables
        local_ids = {id(v) for v in local}
        self._shared = [v for v in v1.global_variables() if id(v) not in local_ids]
        self._initialize_local = v1.variables_initializer(local)
        self._initialize_shared = v1.variables_initializer(self._shared)
        self._is_initialized = self.desk.is_ready.is_initialized()

    @property
    def signature(self) -> int:
        """Return a checksum of the shared variables, which all workers must have alike."""
        found = [(tuple(v.shape), v.dtype.name) for v in self._shared]
        return zlib.crc32(repr(found).encode())

    # the session

    def open(self, timeout_s: float) -> None:
        """Open the session, once all servers answer; the store's variables are not initialized.

        Raises:
            TaskTimeoutError: If a server does not answer in time, naming it.
        """
        wait_for_servers(self.seat.servers, timeout_s)
        config = tf.compat.v1.ConfigProto(
            device_filters=self.seat.device_filters, allow_soft_placement=True
        )
        config.gpu_options.allow_growth = True
        self._session = tf.compat.v1.Session(self.seat.target, graph=self.graph, config=config)
        self._values = GraphValues(self._session)
        if self.turns is not None:
            self.turns.use(self._session)
        self._session.run(self._initialize_local)
        for data in self._data.values():
            data.load()

    def initialize(self, notes: str) -> None:
        """Give all shared variables their first values: the chief's model's, and zeros.

        Args:
            notes: What the others should know of the chief; see `read_notes`.
        """
        self._session.run(self._initialize_shared)
        self._values.fill_all()
        self.store.read_from_model()
        self.write_frozen()
        self.constants.write(as_arrays(self._constants))
        write(self.desk.notes, notes)
        write(self.desk.is_ready, 1)

    def write_frozen(self) -> None:
        """Give the servers the model's frozen values."""
        self.frozen.write([to_numpy(variable) for variable in self.structure.frozen])

    def wait_until_ready(
        self, timeout_s: float, chief: str, check: Callable[[], None] = lambda: None
    ) -> str:
        """Wait until the chief has initialized; return its notes.

        Raises:
            TaskTimeoutError: If it takes longer than `timeout_s`.
        """
        end_s = time.monotonic() + timeout_s
        while not self._session.run(self._is_initialized) or not to_numpy(self.desk.is_ready):
            check()
            if time.monotonic() > end_s:
                raise TaskTimeoutError(
                    f"Gave up after {timeout_s:g} s (cluster.start_timeout_s) waiting for {chief} "
                    "to initialize the parameter servers. See its log."
                )
            time.sleep(_POLL_S * 4)
        return bytes(to_numpy(self.desk.notes).item()).decode()

    def arrive(self) -> None:
        """Tell the chief that this worker takes tickets from now on."""
        self._session.run(self._arrive)

    def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            self._session.close()
            self._session = None

    # tickets

    def take(self) -> Ticket:
        """Return the next ticket; one without ids where nothing is open or left."""
        feeds = {self._most: TICKET_STEPS, self._unit: self.unit}
        return as_ticket(self._session.run(self._take, feeds))

    def open_desk(self, fields: Any) -> None:
        """Let everybody take what `fields` (`Opened`) say."""
        self._session.run(self._open, {self._fields: np.asarray(fields, np.int64)})

    def known(self, kind: int, first: int, end: int) -> np.ndarray:
        """Return which of the ids `[first, end)` are done on all servers: a bool vector."""
        return self._session.run(self._known[kind], {self._lo: first, self._hi: end})

    def run(self, ticket: Ticket) -> None:
        """Compute a ticket's ids, in order."""
        self.refresh(ticket.version)
        sizes = sorted((s for kind, s in self._operations if kind == ticket.kind), reverse=True)
        next_id = ticket.first
        while next_id < ticket.end:
            size = next(s for s in sizes if next_id + s <= ticket.end)
            fed = self._data[ticket.kind].fed(next_id)
            self._call(ticket.kind, size)(next_id, ticket.base, *fed)
            next_id += size

    def refresh(self, version: int) -> None:
        """Copy the values that are kept on the server, unless that is done."""
        if version != self._version:
            self._session.run(self._refreshed)
            self._version = version

    @property
    def steps_at_once(self) -> int | None:
        """Return how many steps a call can run: one where batches are handed in, or any number."""
        return self._data[TRAIN].unit_limit

    def turns_of(self, replica: int, stretch: int, first_step: int) -> Callable[[], Any]:
        """Return what takes a replica's turns in a stretch of steps, until that is over.

        It may run in a thread of its own. Call `refresh` before.
        """
        fed = self._data[TRAIN].fed(first_step)
        call = self._call(TURNS, 1)
        return lambda: call(replica, stretch, *fed)

    def _call(self, kind: int, size: int) -> Callable[..., Any]:
        if (kind, size) not in self._calls:
            data = self._data[TRAIN if kind == TURNS else kind]
            feeds = [self._first_id, self._base, *data.feeds]
            self._calls[kind, size] = self._session.make_callable(
                self._operations[kind, size], feeds
            )
        return self._calls[kind, size]
