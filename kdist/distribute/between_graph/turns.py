"""Synchronous updates by clients: the servers' dealing of shares, reached through a session."""

from collections.abc import Collection
from typing import Any, NamedTuple

import tensorflow as tf

from kdist.distribute.aggregation.aggregation import Aggregation
from kdist.distribute.servers.server_store import ServerStore
from kdist.distribute.values import write


class Shares(NamedTuple):
    """N of M: an update is the mean of `num_shares` shares, which `num_replicas` workers compute.

    `batch_size` is the rows of a full global batch.
    """

    num_shares: int
    num_replicas: int
    batch_size: int


class ClientAggregation(Aggregation):
    """The same operations as the coordinator's; what it runs eagerly is run in a session here."""

    def __init__(self, store: ServerStore, shares: Shares, looked_up: Collection[int]):
        """Create what the servers need in the store's graph, and trace what they do."""
        super().__init__(store, **shares._asdict(), looked_up=looked_up)
        self._finish_fn = self.traced_finish()
        self._session: Any = None

    def build(self) -> None:
        """Add the chief's operations to the graph, which is the current one."""
        v1 = tf.compat.v1
        self._first, self._size = v1.placeholder(tf.int64, []), v1.placeholder(tf.int64, [])
        self._opened = self.desk.open_fn(self._first, self._size)
        self._woken = self.desk.wake()
        self._finished = self._finish_fn()

    def use(self, session: tf.compat.v1.Session) -> None:
        """Run operations in a session from now on."""
        self._session = session

    def open(self, first_step: int, num_steps: int) -> int:
        """Begin a stretch of steps; return its number."""
        for staged in self._staged.values():
            write(staged.version, first_step)
        return int(
            self._session.run(self._opened, {self._first: first_step, self._size: num_steps})
        )

    def wake(self) -> None:
        """Let all replicas that wait ask again."""
        self._session.run(self._woken)

    def finish(self) -> None:
        """Make all servers apply the last step of a stretch."""
        self._session.run(self._finished)
