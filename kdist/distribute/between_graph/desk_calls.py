"""What a worker's session runs at the ticket desk.

Everything of a call, what it is fed and what it returns too, is placed on the server that answers:
so it takes one message there and back, where each tensor between two devices takes one more.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.distribute.between_graph.desk import (
    EVALUATE,
    TRAIN,
    Opened,
    Ticket,
    TicketDesk,
    as_ticket,
)
from kdist.distribute.servers.servers import Server


class DeskCalls:
    """The calls of one worker; make it in the graph of the store, outside any device."""

    def __init__(self, desk: TicketDesk, *, whole: int, worker_index: int):
        """Build the operations.

        Args:
            desk: The desk.
            whole: Steps of a full call of the runtime.
            worker_index: Of this worker.
        """
        # Fewer scalars to feed is less to send: both numbers of a call are one vector.
        pair, first = [2], desk.device
        self._take = _Call(first, pair, lambda asked: desk.take(asked[0], asked[1], whole=whole))
        self._open = _Call(first, [len(Opened._fields)], desk.open)
        self._cut = _Call(first, [0], lambda nothing: desk.cut())
        index = tf.constant(worker_index, tf.int64)
        self._arrive = _Call(first, [0], lambda nothing: desk.arrive(index))
        self._known = {
            TRAIN: [
                _Call(server.device, pair, functools.partial(_applied, desk, server))
                for server in desk.holders
            ],
            EVALUATE: [_Call(first, pair, lambda ids: desk.evaluated(ids[0], ids[1]))],
        }

    def take(self, session: tf.compat.v1.Session, *, most: int, unit: int) -> Ticket:
        """Return the next ticket; one without ids where nothing is open or left.

        Args:
            session: Of this worker.
            most: Ids that it may have.
            unit: Ids that it has a multiple of.
        """
        return as_ticket(self._take.run(session, [most, unit]))

    def open(self, session: tf.compat.v1.Session, fields: Sequence[int]) -> None:
        """Let everybody take what `fields` (`Opened`) say."""
        self._open.run(session, fields)

    def cut(self, session: tf.compat.v1.Session) -> int:
        """Let nobody take any more of what is open; return the id behind the last one taken."""
        return int(self._cut.run(session, []))

    def arrive(self, session: tf.compat.v1.Session) -> None:
        """Say that this worker takes tickets from now on."""
        self._arrive.run(session, [])

    def known(self, session: tf.compat.v1.Session, kind: int, first: int, end: int) -> np.ndarray:
        """Return which of the ids `[first, end)` are done on all servers: a bool vector."""
        calls = self._known[kind]
        feeds = {call.fed: np.asarray([first, end], np.int64) for call in calls}
        answers = session.run([call.answer for call in calls], feeds)
        return np.logical_and.reduce(answers)


class _Call:
    """One operation, with the vector that it is fed."""

    def __init__(self, device: str, shape: list[int], function: Callable[[tf.Tensor], Any]):
        with tf.device(device):
            self.fed = tf.compat.v1.placeholder(tf.int64, shape)
            self.answer = tf.function(lambda fed: function(fed), autograph=False)(self.fed)

    def run(self, session: tf.compat.v1.Session, numbers: Sequence[int]) -> Any:
        return session.run(self.answer, {self.fed: np.asarray(numbers, np.int64)})


def _applied(desk: TicketDesk, server: Server, ids: tf.Tensor) -> tf.Tensor:
    return desk.applied(server, ids[0], ids[1])
