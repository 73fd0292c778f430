"""Synchronous updates on parameter servers, as graph code for whoever drives the workers.

A replica's turn is: ask for a share (`begin`), `pull` the parameters of its step, compute,
`contribute`, which answers with the next share; and again, until the answer is DONE. Waiting for
the other replicas happens on the first server, inside `begin` and `contribute`. Each of these is
one message to a server and one back: the first server's parameters come with its answer.

Exactly N shares, computed from the parameters of a step, make its update, the same ones on every
server. A share is staged on all servers before the first server decides whether it counts. Once it
has accepted N shares the step is over; whoever pulls next makes each server apply them. So a
replica that is lost anywhere on the way leaves nothing half done.
"""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from kdist.distribute.aggregation import share_dealer
from kdist.distribute.aggregation.answers import HEAD, Dealt, of_step, with_answer, without_answer
from kdist.distribute.aggregation.served_values import ServedValues
from kdist.distribute.aggregation.share_desk import ShareDesk
from kdist.distribute.aggregation.staged_shares import StagedShares
from kdist.distribute.servers.packets import Pulled, Push
from kdist.distribute.servers.server_apply import traced_as_one_call, traced_under_lock
from kdist.distribute.servers.server_store import ServerStore
from kdist.distribute.values import to_numpy

_PLAIN = tf.autograph.experimental.do_not_convert


class Aggregation:
    """Deals shares on the first server, and aggregates them on all. Answers are int64 vectors."""

    def __init__(
        self,
        store: ServerStore,
        *,
        num_shares: int,
        num_replicas: int,
        batch_size: int,
        looked_up: Collection[int] = (),
    ):
        """Create what the servers need, and trace what they do.

        Args:
            store: The parameters.
            num_shares: Shares that make a step (N).
            num_replicas: Replicas that compute shares (M), at least N.
            batch_size: Rows of a full global batch. A share's gradient is that of its part of the
                loss on its global batch, times the rows of that batch, divided by this number.
            looked_up: Buckets that `pull` leaves out.
        """
        self.store = store
        self.num_shares = num_shares
        self.num_replicas = num_replicas
        self.batch_size = batch_size
        self._values = ServedValues(store, looked_up)
        # A norm over all servers is known only when all of them have been asked.
        self._is_clipped = store.global_clipnorm is not None
        with store.scope():
            self.desk = ShareDesk(
                store.servers[0], num_shares=num_shares, num_replicas=num_replicas
            )
            self._staged = {
                index: self._create_staged(index)
                for index, server in enumerate(store.servers)
                if server.bucket_indices or index == 0
            }
        self._trace()
        self._finish_fn: Any = None
        self._stop_step: int | None = None

    def _trace(self) -> None:
        told, square = tf.TensorSpec([1 + self.num_shares], tf.int64), tf.TensorSpec([])
        self._stage_fns, self._square_fns, self._advance_fns = {}, {}, {}
        self._pull_fns = {}
        for index, staged in self._staged.items():
            self._stage_fns[index] = self._locked(
                index, functools.partial(self._stage, staged), staged.packets.spec
            )
            self._advance_fns[index] = self._locked(index, staged.advance, told, square)
            server, pull = self.store.servers[index], functools.partial(self._pull, index)
            squares = [square] if self._is_clipped else []
            self._pull_fns[index] = traced_as_one_call(server, pull, told, *squares)
            if self._is_clipped:
                self._square_fns[index] = self._locked(index, staged.square, told)
        self.desk.trace(self._staged[0], self.store.tallies.contributions, self._serve)

    def _stage(self, staged: StagedShares, packet: Any) -> tf.Tensor:
        header = staged.packets.origin(packet)
        return staged.stage(self.desk.origin_of(header)[0], header.step_id, packet)

    def _pull(self, index: int, told: Any, *squares: Any) -> list[tf.Tensor]:
        """Apply the step before on a server, and return what the step reads there."""
        square = squares[0] if squares else tf.constant(0.0)
        with tf.control_dependencies([self._advance_fns[index](told, square)]):
            return self._values.read(index)

    def _serve(self, answer: Any) -> list[tf.Tensor]:
        """Return an answer with what its step reads of the first server, as one message."""
        if self._is_clipped:
            return with_answer(answer, [tf.zeros([0])])
        told = of_step(answer)
        applied = tf.cond(
            tf.equal(answer[0], share_dealer.WORK),
            lambda: self._advance_fns[0](told, tf.constant(0.0)),
            lambda: tf.constant(0),
        )
        with tf.control_dependencies([applied]):
            return with_answer(answer, self._values.read(0))

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
    def begin(self, replica: Any, stretch: Any) -> Dealt:
        """Return the replica's first share of a stretch; see `share_dealer.dealt`.

        A replica that asks again gets the share that it held.

        Args:
            replica: int64 scalar below `num_replicas`.
            stretch: What `open` returned.
        """
        return self._dealt(self._at(0, self.desk.begin_fn, tf.stack([replica, stretch])))

    @_PLAIN
    def pull(self, dealt: Dealt) -> tuple[Pulled, Sequence[tf.Operation]]:
        """Bring all servers to the step of an answer.

        Returns:
            What the step reads, but for buckets that are looked up; and what those who look them up
            must wait for.
        """
        told = of_step(dealt.answer)
        squares = [tf.add_n(self._squares(told))] if self._is_clipped else []
        parts = {} if self._is_clipped else {0: dealt.served}
        for index, function in self._pull_fns.items():
            if index not in parts:
                parts[index] = self._at(index, function, told, *squares)
        return self._values.pulled(parts), [part[0].op for part in parts.values()]

    def _squares(self, told: Any) -> list[tf.Tensor]:
        return [self._at(i, function, told) for i, function in self._square_fns.items()]

    @_PLAIN
    def contribute(
        self,
        dealt: Dealt,
        replica: Any,
        stretch: Any,
        worker: Any,
        *,
        gradients: Sequence[Any],
        aux: Any,
        is_finite: Any,
    ) -> Dealt:
        """Stage a share on all servers, offer it, and return the replica's next one.

        Args:
            dealt: What this share was dealt by.
            replica: As in `begin`.
            stretch: As in `begin`.
            worker: Index of the worker that computed it, for the records.
            gradients: By bucket, without dynamic loss scale, scaled as `__init__` says.
            aux: The vector of `AuxLayout`; changes of states are scaled like gradients.
            is_finite: Whether no gradient overflowed.
        """
        ticket, origin = dealt.answer[1], self.desk.origin(replica, stretch)

        def packet(index: int) -> Any:
            staged = self._staged[index]
            mine = [gradients[i] for i in staged.server.bucket_indices]
            rest = aux if index == 0 else aux[:1]
            return staged.packets.pack(Push(ticket, is_finite, mine, rest, worker, origin))

        others = [
            self._at(index, function, packet(index))
            for index, function in self._stage_fns.items()
            if index != 0
        ]
        with tf.control_dependencies(others):
            first = tf.nest.map_structure(tf.identity, packet(0), expand_composites=True)
        return self._dealt(self._at(0, self.desk.contribute_fn, first))

    def _dealt(self, parts: Sequence[Any]) -> Dealt:
        return Dealt(*without_answer(parts, HEAD + self.num_shares))

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
                told = tf.concat([[dealing.step], dealing.last], 0)
            square = tf.add_n(self._squares(told)) if self._is_clipped else tf.constant(0.0)
            advances = self._advance_fns.items()
            done = [self._at(i, function, told, square) for i, function in advances]
            with tf.control_dependencies(done):
                return tf.constant(0)

        return tf.function(finish, autograph=False).get_concrete_function()

    def _locked(self, index: int, function: Callable[..., Any], *specs: Any) -> Any:
        server = self.store.servers[index]
        return traced_as_one_call(server, traced_under_lock(server, function, *specs), *specs)

    def _at(self, index: int, function: Any, *args: Any) -> Any:
        """Call a traced function of a server; the result is on the caller's device."""
        with tf.device(self.store.servers[index].device):
            local = tf.nest.map_structure(tf.identity, args, expand_composites=True)
            result = function(*local)
        return tf.nest.map_structure(tf.identity, result)
