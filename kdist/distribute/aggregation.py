"""Synchronous updates on parameter servers, as graph code for whoever drives the workers.

A replica's turn is: ask for a share (`begin`), `pull` the parameters of its step, compute,
`contribute`, which answers with the next share; and again, until the answer is DONE. Waiting for
the other replicas happens on the first server, inside `begin` and `contribute`.

Exactly N shares, computed from the parameters of a step, make its update, the same ones on every
server. A share is staged on all servers before the first server decides whether it counts. Once it
has accepted N shares the step is over; whoever pulls next makes each server apply them. So a
replica that is lost anywhere on the way leaves nothing half done.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kdist.distribute import share_dealer
from kdist.distribute.packets import Push
from kdist.distribute.server_apply import traced_under_lock
from kdist.distribute.server_store import ServerStore
from kdist.distribute.share_desk import ShareDesk
from kdist.distribute.staged_shares import StagedShares
from kdist.distribute.values import to_numpy

_PLAIN = tf.autograph.experimental.do_not_convert
_SCALAR = tf.TensorSpec([], tf.int64)


class Aggregation:
    """Deals shares on the first server, and aggregates them on all. Answers are int64 vectors."""

    def __init__(self, store: ServerStore, *, num_shares: int, num_replicas: int, batch_size: int):
        """Create what the servers need, and trace what they do.

        Args:
            store: The parameters.
            num_shares: Shares that make a step (N).
            num_replicas: Replicas that compute shares (M), at least N.
            batch_size: Rows of a full global batch. A share's gradient is that of its part of the
                loss on its global batch, times the rows of that batch, divided by this number.
        """
        self.store = store
        self.num_shares = num_shares
        self.num_replicas = num_replicas
        self.batch_size = batch_size
        with store.scope():
            self.desk = ShareDesk(
                store.servers[0], num_shares=num_shares, num_replicas=num_replicas
            )
            self._staged = {
                index: self._create_staged(index)
                for index, server in enumerate(store.servers)
                if server.bucket_indices or index == 0
            }
        replicas = tf.TensorSpec([num_shares], tf.int64)
        square = tf.TensorSpec([], tf.float32)
        self.desk.trace(self._staged[0], store.tallies.contributions)
        self._stage_fns, self._square_fns, self._advance_fns = {}, {}, {}
        for index, staged in self._staged.items():
            packet = staged.packets.spec
            self._stage_fns[index] = self._locked(index, staged.stage, _SCALAR, _SCALAR, packet)
            self._advance_fns[index] = self._locked(
                index, staged.advance, _SCALAR, replicas, square
            )
            if store.global_clipnorm is not None:
                self._square_fns[index] = self._locked(index, staged.square, _SCALAR, replicas)
        self._finish_fn: Any = None
        self._stop_step: int | None = None

    def _create_staged(self, index: int) -> StagedShares:
        store, is_first = self.store, index == 0
        return StagedShares(
            store.servers[index],
            [store.layout.buckets[i] for i in store.servers[index].bucket_indices],
            store.update_of(index),
            num_logged=store.aux.num_logged if is_first else 1,
            num_states=store.aux.num_states if is_first else 0,
            num_shares=self.num_shares,
            num_replicas=self.num_replicas,
            batch_size=self.batch_size,
            global_clipnorm=store.global_clipnorm,
        )

    # a replica's turn, in a worker's graph

    @_PLAIN
    def begin(self, replica: Any, stretch: Any) -> tf.Tensor:
        """Return the replica's first share of a stretch; see `share_dealer.dealt`.

        A replica that asks again gets the share that it held.

        Args:
            replica: int64 scalar below `num_replicas`.
            stretch: What `open` returned.
        """
        return self._at(0, self.desk.begin_fn, replica, stretch)

    @_PLAIN
    def pull(self, answer: Any) -> Sequence[tf.Operation]:
        """Bring all servers to the step of an answer, and return what readers must wait for."""
        step, last = answer[2], answer[4:]
        square = tf.constant(0.0)
        if self._square_fns:
            square = tf.add_n(
                [self._at(i, function, step, last) for i, function in self._square_fns.items()]
            )
        done = [
            self._at(i, function, step, last, square) for i, function in self._advance_fns.items()
        ]
        return [each.op for each in done]

    @_PLAIN
    def contribute(
        self,
        answer: Any,
        replica: Any,
        stretch: Any,
        worker: Any,
        *,
        gradients: Sequence[Any],
        aux: Any,
        is_finite: Any,
    ) -> tf.Tensor:
        """Stage a share on all servers, offer it, and return the replica's next one.

        Args:
            answer: What this share was dealt by.
            replica: As in `begin`.
            stretch: As in `begin`.
            worker: Index of the worker that computed it, for the records.
            gradients: By bucket, without dynamic loss scale, scaled as `__init__` says.
            aux: The vector of `AuxLayout`; changes of states are scaled like gradients.
            is_finite: Whether no gradient overflowed.
        """
        ticket = answer[1]

        def packet(index: int, staged: StagedShares) -> Any:
            mine = [gradients[i] for i in staged.server.bucket_indices]
            return staged.packets.pack(
                Push(ticket, is_finite, mine, aux if index == 0 else aux[:1])
            )

        others = [
            self._at(index, self._stage_fns[index], replica, ticket, packet(index, staged)).op
            for index, staged in self._staged.items()
            if index != 0
        ]
        first = packet(0, self._staged[0])
        with tf.control_dependencies(others):
            return self._at(0, self.desk.contribute_fn, replica, stretch, ticket, worker, first)

    # on the coordinator, between and around stretches

    def open(self, first_step: int, num_steps: int) -> int:
        """Begin a stretch of steps; return its number, which `begin` takes."""
        first = tf.constant(first_step, tf.int64)
        if first_step != self._stop_step:
            for staged in self._staged.values():
                staged.version.assign(first)
        self._stop_step = first_step + num_steps
        return int(self.desk.open_fn(first, tf.constant(num_steps, tf.int64)).numpy())

    def read(self) -> share_dealer.Dealing:
        """Return the state of dealing, as numpy values."""
        return self.desk.read(to_numpy)

    def wake(self) -> None:
        """Let all replicas that wait ask again: one whose call was lost took another's turn."""
        self.desk.wake()

    def finish(self) -> None:
        """Make all servers apply the last step of a stretch; call it when that step is over."""
        if self._finish_fn is None:
            self._finish_fn = self.traced_finish()
        self._finish_fn()

    def traced_finish(self) -> Any:
        """Return what `finish` runs, as a concrete function."""

        def finish() -> tf.Tensor:
            with tf.device(self.store.servers[0].device):
                dealing = self.desk.unpacked()
            head = [tf.zeros_like(dealing.step)] * 2
            with tf.control_dependencies(
                self.pull(tf.concat([[*head, dealing.step, head[0]], dealing.last], 0))
            ):
                return tf.constant(0)

        return tf.function(finish, autograph=False).get_concrete_function()

    def _locked(self, index: int, function: Callable[..., Any], *specs: Any) -> Any:
        return traced_under_lock(self.store.servers[index], function, *specs)

    def _at(self, index: int, function: Any, *args: Any) -> Any:
        """Call a traced function of a server; the result is on the caller's device."""
        with tf.device(self.store.servers[index].device):
            local = tf.nest.map_structure(tf.identity, args, expand_composites=True)
            result = function(*local)
        return tf.identity(result)
