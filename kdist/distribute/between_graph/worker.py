"""One worker as its own client: a session on its graph, and the tickets that it takes."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.between_graph.copies import as_arrays
from kdist.distribute.between_graph.desk import TRAIN, TURNS, Opened, Ticket
from kdist.distribute.between_graph.graph import WorkerGraph
from kdist.distribute.between_graph.reach import wait_for_servers
from kdist.distribute.between_graph.ticket_size import TicketSize
from kdist.distribute.graph_values import GraphValues
from kdist.distribute.values import to_numpy, write
from kdist.errors import TaskTimeoutError

_POLL_S = 0.005


class StepWorker:
    """Computes steps and evaluations by ticket. The chief has one, and so has every follower."""

    def __init__(self, graph: WorkerGraph):
        """Hold the graph; `open` comes first."""
        self.graph = graph
        self.store = graph.store
        self.desk = graph.desk
        self.turns = graph.turns
        self.index = graph.seat.share.worker_index
        self._size = TicketSize(graph.unit)
        self._version = -1
        self._session: Any = None
        self._values: GraphValues | None = None
        self._calls: dict[tuple[int, int], Callable[..., Any]] = {}

    # the session

    def open(self, timeout_s: float, check: Callable[[], None] = lambda: None) -> None:
        """Open the session, once all servers answer; the store's variables are not initialized.

        Args:
            timeout_s: How long to wait for the servers.
            check: Called while waiting; raises when that has no sense any more.

        Raises:
            TaskTimeoutError: If a server does not answer in time, naming it.
        """
        graph, seat = self.graph, self.graph.seat
        check()
        wait_for_servers(seat.servers, timeout_s, check)
        self._session = self._new_session(graph.graph)
        self._values = GraphValues(self._session, self._new_session)
        if self.turns is not None:
            self.turns.use(self._session)
        self._session.run(graph.initialize_local)
        for data in graph.data.values():
            data.load()

    def _new_session(self, graph: tf.Graph, *, is_optimized: bool = True) -> tf.compat.v1.Session:
        """Return a session on a graph and the worker's servers.

        To optimize a graph, this process makes the zeros that tables of the servers begin with.
        """
        seat = self.graph.seat
        config = tf.compat.v1.ConfigProto(
            device_filters=seat.device_filters, allow_soft_placement=True
        )
        config.gpu_options.allow_growth = True
        config.graph_options.rewrite_options.disable_meta_optimizer = not is_optimized
        return tf.compat.v1.Session(seat.target, graph=graph, config=config)

    def initialize(self, notes: str) -> None:
        """Give all shared variables their first values: the chief's model's, and zeros.

        Args:
            notes: What the others should know of the chief; see `read_notes`.
        """
        with self._new_session(self.graph.graph, is_optimized=False) as plain:
            plain.run(self.graph.initialize_shared)
        assert self._values is not None
        self._values.fill_all()
        self.store.read_from_model()
        self._session.run([op for each in self.store.optimizers for op in each.first_assignments])
        self.write_frozen()
        self.graph.constants.write(as_arrays(self.graph.constant_values))
        write(self.desk.notes, notes)
        write(self.desk.is_ready, 1)

    def write_frozen(self) -> None:
        """Give the servers the model's frozen values."""
        frozen = self.graph.structure.frozen
        self.graph.frozen.write([to_numpy(variable) for variable in frozen])

    def wait_until_ready(
        self, timeout_s: float, chief: str, check: Callable[[], None] = lambda: None
    ) -> str:
        """Wait until the chief has initialized; return its notes.

        Raises:
            TaskTimeoutError: If it takes longer than `timeout_s`.
        """
        end_s = time.monotonic() + timeout_s
        while not self._session.run(self.graph.is_initialized) or not to_numpy(self.desk.is_ready):
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
        self.graph.desk_calls.arrive(self._session)

    def close(self) -> None:
        """Close the session."""
        if self._values is not None:
            self._values.close()
            self._values = None
        if self._session is not None:
            self._session.close()
            self._session = None

    # tickets

    def take(self) -> Ticket:
        """Return the next ticket; one without ids where nothing is open or left."""
        size = self._size
        return self.graph.desk_calls.take(self._session, most=size.most, unit=size.unit)

    def cut(self) -> int:
        """Let nobody take any more of what is open; return the id behind the last one taken."""
        return self.graph.desk_calls.cut(self._session)

    def open_desk(self, fields: Opened) -> None:
        """Let everybody take what `fields` say."""
        self.graph.desk_calls.open(self._session, fields)

    def known(self, kind: int, first: int, end: int) -> np.ndarray:
        """Return which of the ids `[first, end)` are done on all servers: a bool vector."""
        return self.graph.desk_calls.known(self._session, kind, first, end)

    def run(self, ticket: Ticket) -> None:
        """Compute a ticket's ids, in order."""
        self.refresh(ticket.version)
        begun_s = time.monotonic()
        sizes = sorted((s for kind, s in self.graph.blocks if kind == ticket.kind), reverse=True)
        data = self.graph.data[ticket.kind]
        data.expect(ticket.end)
        next_id = ticket.first
        while next_id < ticket.end:
            size = next(s for s in sizes if next_id + s <= ticket.end)
            self._call(ticket.kind, size)(next_id, ticket.base, *data.fed(next_id))
            next_id += size
        if ticket.kind == TRAIN:
            self._size.observe(ticket.num_ids, time.monotonic() - begun_s)

    def refresh(self, version: int) -> None:
        """Copy the values that are kept on the server, unless that is done."""
        if version != self._version:
            self._session.run(self.graph.refreshed)
            self._version = version

    @property
    def steps_at_once(self) -> int | None:
        """Return how many steps a call can run: one where batches are handed in, or any number."""
        return self.graph.data[TRAIN].unit_limit

    def turns_of(self, replica: int, stretch: int, first_step: int) -> Callable[[], Any]:
        """Return what takes a replica's turns in a stretch of steps, until that is over.

        It may run in a thread of its own. Call `refresh` before.
        """
        fed = self.graph.data[TRAIN].fed(first_step)
        call = self._call(TURNS, 1)
        return lambda: call(replica, stretch, *fed)

    def _call(self, kind: int, size: int) -> Callable[..., Any]:
        if (kind, size) not in self._calls:
            data = self.graph.data[TRAIN if kind == TURNS else kind]
            feeds = [self.graph.first_id, self.graph.base, *data.feeds]
            self._calls[kind, size] = self._session.make_callable(
                self.graph.blocks[kind, size], feeds
            )
        return self._calls[kind, size]
