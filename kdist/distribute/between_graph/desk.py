"""The ticket desk on the first server: workers fetch ranges of ids there before they compute.

An id stands for a step, or for a batch of an evaluation. The chief opens a range; whoever is free
takes a part of it, under a lock, so that together they compute exactly the ids of the range: a
worker that joins late or falls behind takes fewer. All methods that build operations must run in
the graph of the store.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from kdist.distribute.servers.server_store import WINDOW, Server, ServerStore

TRAIN, EVALUATE, TURNS = 0, 1, 2


class Opened(NamedTuple):
    """What the desk deals from: ids `[next_id, end)`.

    Attributes:
        kind: `TRAIN`, `EVALUATE`, or `TURNS`: a stretch of steps in which every worker takes its
            turns (synchronous updates), without tickets.
        next_id: The first id that nobody has taken.
        end: Behind the last id.
        base: What an evaluation adds to its batch indices, so that no two share an id. Of turns,
            the number of the stretch.
        version: Of the values that workers keep a copy of.
        is_closed: Whether nothing will be opened any more.
    """

    kind: int = TRAIN
    next_id: int = 0
    end: int = 0
    base: int = 0
    version: int = 0
    is_closed: int = 0


class Ticket(NamedTuple):
    """Ids `[first, end)` that one worker computes; the other fields are those of `Opened`."""

    kind: int
    first: int
    end: int
    base: int
    version: int
    is_closed: int

    @property
    def num_ids(self) -> int:
        """Return how many ids there are; none where nothing is open."""
        return self.end - self.first


class TicketDesk:
    """Variables of the desk, and operations on them.

    Attributes:
        num_workers: Workers that fetch tickets.
        device: Of the first server, which holds the desk.
        is_ready, notes: What the chief tells the others.
        opened: What is dealt from: the fields of `Opened`.
        arrived: By worker, how often it has come.
        holders: The servers that take part in every step.
    """

    def __init__(self, store: ServerStore, *, num_workers: int):
        """Create the desk on the store's first server.

        Args:
            store: Whose servers know which ids have been applied.
            num_workers: Workers that fetch tickets.
        """
        self._store = store
        self.num_workers = num_workers
        self.device = store.servers[0].device
        with tf.device(self.device):
            self.is_ready = tf.Variable(tf.constant(0, tf.int64))
            self.notes = tf.Variable(tf.constant(""))
            self.opened = tf.Variable(tf.zeros([len(Opened._fields)], tf.int64))
            self.arrived = tf.Variable(tf.zeros([num_workers], tf.int64))
            self._lock = tf.CriticalSection(shared_name="kdist_desk")
        self.holders = [
            server
            for index, server in enumerate(store.servers)
            if server.bucket_indices or index == 0
        ]

    def take(self, most: tf.Tensor, unit: tf.Tensor, whole: int) -> tf.Tensor:
        """Return a ticket's fields, an int64 vector.

        A ticket has a part of what is left, so that all workers end at about the same time.

        Args:
            most: int64 scalar, ids that one ticket may have.
            unit: int64 scalar, ids that it has a multiple of.
            whole: Ids of a full call of the runtime, a multiple of `unit`: a ticket has a multiple
                of them while there is a call left for everybody.
        """

        def deal() -> tf.Tensor:
            kind, next_id, end, base, version, is_closed = tf.unstack(self.opened.read_value())
            left = end - next_id
            half = left // (2 * self.num_workers)
            calls = tf.minimum(most, tf.maximum(half, whole)) // whole * whole
            steps = tf.minimum(most, half) // unit * unit
            is_long = tf.logical_and(most >= whole, left >= whole * self.num_workers)
            fair = tf.where(is_long, calls, steps)
            behind = next_id + tf.minimum(left, tf.maximum(fair, unit))
            with tf.control_dependencies(
                [self.opened.assign(tf.stack([kind, behind, end, base, version, is_closed]))]
            ):
                return tf.stack([kind, next_id, behind, base, version, is_closed])

        return self._locked(deal)

    def cut(self) -> tf.Tensor:
        """Let nobody take any more of what is open; return the id behind the last one taken."""

        def end() -> tf.Tensor:
            kind, next_id, _, base, version, is_closed = tf.unstack(self.opened.read_value())
            fields = tf.stack([kind, next_id, next_id, base, version, is_closed])
            with tf.control_dependencies([self.opened.assign(fields)]):
                return tf.identity(next_id)

        return self._locked(end)

    def open(self, fields: tf.Tensor) -> tf.Tensor:
        """Let workers take what `Opened` says; for the chief, once everything before is done."""

        def assign() -> tf.Tensor:
            with tf.control_dependencies([self.opened.assign(fields)]):
                return tf.constant(0)

        return self._locked(assign)

    def arrive(self, worker_index: tf.Tensor) -> tf.Tensor:
        """Say that a worker is there; one that comes back says so again."""
        with tf.device(self.device):
            one = tf.constant([1], tf.int64)
            self.arrived.scatter_nd_add([[worker_index]], one)
            return tf.constant(0)

    def applied(self, server: Server, first: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """Return which of the steps `[first, end)` a server has applied, to the last bit.

        Whoever reads it has seen the server's lock free after that.

        Args:
            server: One of `holders`.
            first: int64 scalar.
            end: int64 scalar.
        """
        return self._known(server.lock, server.device, server.applied, first, end)

    def evaluated(self, first: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """Return which of these evaluation ids have been counted."""
        server = self.holders[0]
        return self._known(server.lock, server.device, self._store.tallies.evaluated, first, end)

    @staticmethod
    def _known(lock: Any, device: str, window: tf.Variable, first: Any, end: Any) -> tf.Tensor:
        with tf.device(device):
            ids = tf.range(first, end)
            return lock.execute(lambda: tf.equal(tf.gather(window, ids % WINDOW), ids))

    def _locked(self, function: Any) -> tf.Tensor:
        with tf.device(self.device):
            return self._lock.execute(function)


def as_ticket(fields: np.ndarray) -> Ticket:
    """Return the ticket that `take` dealt."""
    return Ticket(*(int(field) for field in fields))
