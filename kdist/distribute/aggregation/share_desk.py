"""Where shares are dealt: the first server, which all replicas ask under its lock.

The rules are those of `share_dealer.py`; here are the state, the lock, and the queue on which
replicas wait for the end of a step without holding a thread.
"""

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kdist.distribute.aggregation import share_dealer
from kdist.distribute.aggregation.share_dealer import WAIT
from kdist.distribute.aggregation.staged_shares import StagedShares
from kdist.distribute.servers.contributions import Contributions
from kdist.distribute.servers.packets import Push
from kdist.distribute.servers.server_apply import traced_as_one_call, traced_under_lock
from kdist.distribute.servers.servers import Server

_SCALAR = tf.TensorSpec([], tf.int64)
_NO_LIMIT = -1
_numbers = itertools.count()


class ShareDesk:
    """Deals shares, and takes them; the functions `*_fn` run on the first server."""

    def __init__(self, server: Server, *, num_shares: int, num_replicas: int):
        """Create the state on the server; call it in the scope of the store.

        Args:
            server: The first server.
            num_shares: Shares that make a step (N).
            num_replicas: Replicas that compute shares (M).
        """
        self._server = server
        self._num_shares = num_shares
        self._num_replicas = num_replicas
        with tf.device(server.device):
            dealing = share_dealer.first_dealing(num_shares, num_replicas)
            self.dealing = tf.Variable(share_dealer.packed(dealing), trainable=False)
            # A graph has a container of its own, where all its clients mean the same queue.
            name = f"kdist_turns_{next(_numbers) if tf.executing_eagerly() else 'of_graph'}"
            self._turns = tf.queue.FIFOQueue(_NO_LIMIT, [tf.int64], [[]], shared_name=name)

    def trace(
        self, staged: StagedShares, contributions: Contributions, serve: Callable[[Any], Any]
    ) -> None:
        """Trace what the server does; call it outside the scope of the store.

        Args:
            staged: The first server's staged shares.
            contributions: Counts who contributed what.
            serve: Returns what a replica is sent with an answer, and that answer; called on the
                server, without its lock.
        """
        self._staged, self._contributions, self._serve = staged, contributions, serve
        packet = staged.packets.spec
        self._deal_fn = traced_under_lock(self._server, self._deal, _SCALAR, _SCALAR)
        self._offer_fn = traced_under_lock(self._server, self._offer, packet)
        self.open_fn = traced_under_lock(self._server, self._open, _SCALAR, _SCALAR)
        pair = tf.TensorSpec([2], tf.int64)
        self.begin_fn = traced_as_one_call(self._server, self._begin, pair)
        self.contribute_fn = traced_as_one_call(self._server, self._contribute, packet)

    def wake(self) -> Any:
        """Let all replicas that wait ask again; in a graph, return the operation that does."""
        return self._turns.enqueue_many(tf.zeros([self._num_replicas], tf.int64))

    def unpacked(self) -> share_dealer.Dealing:
        """Return the state of dealing, as tensors on the current device."""
        return share_dealer.unpacked(
            tf.convert_to_tensor(self.dealing), self._num_shares, self._num_replicas
        )

    def read(self, to_numpy: Callable[[Any], Any]) -> share_dealer.Dealing:
        """Return the state of dealing, as numpy values."""
        return share_dealer.unpacked_array(
            to_numpy(self.dealing), self._num_shares, self._num_replicas
        )

    def _begin(self, origin: Any) -> Any:
        replica, stretch = origin[0], origin[1]
        return self._serve(self._when_ready(self._deal_fn(replica, stretch), replica, stretch))

    def _contribute(self, packet: Any) -> Any:
        answer = self._offer_fn(packet)
        replica, stretch = self.origin_of(self._staged.packets.origin(packet))
        return self._serve(self._when_ready(answer, replica, stretch))

    def origin(self, replica: Any, stretch: Any) -> Any:
        """Return the number that stands for a replica and a stretch in the header of a packet."""
        return stretch * self._num_replicas + replica

    def origin_of(self, header: Push) -> tuple[Any, Any]:
        """Return the replica and the stretch that a packet with this header comes from."""
        return header.version % self._num_replicas, header.version // self._num_replicas

    def _offer(self, packet: Any) -> tf.Tensor:
        header = self._staged.packets.origin(packet)
        replica, stretch = self.origin_of(header)
        staged = self._staged.stage(replica, header.step_id, packet)
        with tf.control_dependencies([staged]):
            dealing, verdict = share_dealer.offered(self.unpacked(), replica, header.step_id)
            self._count(verdict, header.worker)
        dealing, answer = share_dealer.dealt(dealing, replica, stretch)
        self.dealing.assign(share_dealer.packed(dealing))
        self._turns.enqueue_many(tf.zeros([verdict.num_woken], tf.int64))
        return tf.identity(answer)

    def _count(self, verdict: share_dealer.Verdict, worker: Any) -> Any:
        contributions = self._contributions

        def take() -> tf.Tensor:
            contributions.take(update=verdict.step, unit=verdict.unit, worker=worker, staleness=0)
            return tf.constant(0)

        return tf.cond(verdict.is_accepted, take, contributions.drop)

    def _deal(self, replica: Any, stretch: Any) -> tf.Tensor:
        dealing, answer = share_dealer.dealt(self.unpacked(), replica, stretch)
        self.dealing.assign(share_dealer.packed(dealing))
        return tf.identity(answer)

    def _when_ready(self, answer: Any, replica: Any, stretch: Any) -> tf.Tensor:
        """Wait until the step is over, as long as that is the answer."""

        def wait(answer: Any) -> Any:
            del answer
            with tf.control_dependencies([self._turns.dequeue()]):
                return self._deal_fn(replica, stretch)

        (answer,) = tf.while_loop(
            lambda answer: tf.equal(answer[0], WAIT), lambda a: (wait(a),), (answer,),
            parallel_iterations=1,
        )  # fmt: skip
        return answer

    def _open(self, first_step: Any, num_steps: Any) -> tf.Tensor:
        dealing = share_dealer.opened(self.unpacked(), first_step, num_steps)
        self.dealing.assign(share_dealer.packed(dealing))
        return dealing.stretch
