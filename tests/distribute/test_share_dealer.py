"""Which shares make a step: simulated with replicas of any speed, which also die."""

import random

import pytest
import tensorflow as tf

from kdist.distribute.aggregation.share_dealer import (
    DONE,
    WAIT,
    WORK,
    dealt,
    first_dealing,
    offered,
    opened,
    packed,
    unpacked,
)


def int64(value):
    return tf.constant(value, tf.int64)


class Dealer:
    """The server's side: one state, one event after the other."""

    def __init__(self, num_shares, num_replicas):
        self.sizes = (num_shares, num_replicas)
        self.vector = packed(first_dealing(*self.sizes))
        self.accepted = []
        self.num_woken = 0
        vector = tf.TensorSpec(self.vector.shape, tf.int64)
        scalar = tf.TensorSpec([], tf.int64)
        self._open = tf.function(self._opened).get_concrete_function(vector, scalar, scalar)
        self._offer = tf.function(self._offered).get_concrete_function(vector, scalar, scalar)
        self._deal = tf.function(self._dealt).get_concrete_function(vector, scalar, scalar)

    def _opened(self, vector, first, num_steps):
        return packed(opened(unpacked(vector, *self.sizes), first, num_steps))

    def _offered(self, vector, replica, ticket):
        state, verdict = offered(unpacked(vector, *self.sizes), replica, ticket)
        return packed(state), verdict

    def _dealt(self, vector, replica, stretch):
        state, answer = dealt(unpacked(vector, *self.sizes), replica, stretch)
        return packed(state), answer

    @property
    def state(self):
        return unpacked(self.vector, *self.sizes)

    def open(self, first, num_steps):
        self.vector = self._open(self.vector, int64(first), int64(num_steps))
        return int(self.state.stretch)

    def offer(self, replica, ticket):
        self.vector, verdict = self._offer(self.vector, int64(replica), int64(ticket))
        self.num_woken = int(verdict.num_woken)
        if verdict.is_accepted:
            self.accepted.append((int(verdict.step), int(verdict.unit), replica))
        return bool(verdict.is_accepted)

    def deal(self, replica, stretch):
        self.vector, answer = self._deal(self.vector, int64(replica), int64(stretch))
        kind, ticket, step, unit, *last = answer.numpy().tolist()
        return kind, ticket, step, unit, last


def test_all_shares_of_a_batch_make_its_step():
    """With N = M each replica has one share of the batch, and waits for the others."""
    dealer = Dealer(2, 2)
    stretch = dealer.open(5, 1)
    assert dealer.deal(1, stretch)[:4] == (WORK, 1, 5, 10)
    assert dealer.deal(0, stretch)[:4] == (WORK, 2, 5, 11)
    assert dealer.offer(0, 2)
    assert dealer.deal(0, stretch)[0] == WAIT
    assert dealer.num_woken == 0
    assert dealer.offer(1, 1)
    assert dealer.num_woken == 1
    kind, _, step, _, last = dealer.deal(1, stretch)
    assert (kind, step, last) == (DONE, 6, [1, 0]), "in the order of the shares"
    assert dealer.state.ended.numpy().tolist() == [0, stretch]


def test_stale_share_goes_back_to_the_queue():
    """Two of three make a step; the third one's rows are the next that anybody is dealt."""
    dealer = Dealer(2, 3)
    stretch = dealer.open(0, 3)
    tickets = [dealer.deal(replica, stretch)[1] for replica in range(3)]
    assert dealer.offer(0, tickets[0])
    assert dealer.offer(1, tickets[1])
    assert not dealer.offer(2, tickets[2])
    assert int(dealer.state.dropped) == 1
    assert dealer.deal(2, stretch)[3] == 3, "another one, so that a slow worker delays no rows"
    assert dealer.deal(0, stretch)[2:4] == (1, 2)
    assert dealer.deal(1, stretch)[3] == 4


def test_last_shares_are_computed_by_those_without_work():
    """The last step waits for nobody as long as N replicas are there."""
    dealer = Dealer(2, 3)
    stretch = dealer.open(0, 1)
    (slow, fast, other) = (dealer.deal(replica, stretch) for replica in range(3))
    assert [deal[3] for deal in (slow, fast, other)] == [0, 1, 0]
    assert dealer.offer(1, fast[1])
    assert dealer.offer(2, other[1])
    assert not dealer.offer(0, slow[1])
    assert dealer.deal(0, stretch)[0] == DONE


def test_dispatch_that_is_run_again_gets_its_share_again():
    dealer = Dealer(2, 2)
    stretch = dealer.open(0, 1)
    first = dealer.deal(0, stretch)
    assert dealer.deal(0, stretch) == first
    dealer.offer(0, first[1])
    assert dealer.deal(0, stretch)[0] == WAIT, "it has done its part of this step"
    assert not dealer.offer(0, first[1]), "a share counts once"


def test_share_of_a_stretch_that_is_over_is_dropped():
    dealer = Dealer(1, 2)
    stretch = dealer.open(0, 1)
    slow, fast = (dealer.deal(replica, stretch) for replica in range(2))
    assert dealer.offer(1, fast[1])
    again = dealer.open(1, 1)
    assert not dealer.offer(0, slow[1])
    assert dealer.deal(0, stretch)[0] == DONE
    assert dealer.deal(0, again)[2:4] == (1, 1)


@pytest.mark.parametrize(("num_shares", "num_replicas"), [(1, 1), (2, 2), (2, 3), (3, 4), (1, 4)])
def test_whatever_the_order_of_events(num_shares, num_replicas):
    """Each step has N shares of the current parameters, each share counts once, none is lost."""
    rng = random.Random(num_replicas * 10 + num_shares)
    dealer = Dealer(num_shares, num_replicas)
    first = 0
    for num_steps in (1, 7, 3, 12):
        stretch = dealer.open(first, num_steps)
        dealer.accepted.clear()
        holds = dict.fromkeys(range(num_replicas))
        asks, waits = set(range(num_replicas)), set()
        slow = rng.randrange(num_replicas)
        while int(dealer.state.step) < first + num_steps:
            assert asks or any(holds.values()), "somebody can go on"
            replica = rng.randrange(num_replicas)
            if replica == slow and rng.random() < 0.9 and num_shares < num_replicas:
                continue
            if holds[replica] and rng.random() < 0.1:
                asks.add(replica)  # Its worker died; the dispatch is run again.
                holds[replica] = None
            elif holds[replica]:
                dealer.offer(replica, holds[replica])
                holds[replica] = None
                asks.add(replica)
                if dealer.num_woken:
                    assert dealer.num_woken >= len(waits)
                    asks, waits = asks | waits, set()
            if replica in asks and rng.random() < 0.7:
                kind, ticket, *_ = dealer.deal(replica, stretch)
                asks.remove(replica)
                if kind == WORK:
                    holds[replica] = ticket
                elif kind == WAIT:
                    waits.add(replica)
        check(dealer.accepted, first, num_steps, num_shares)
        first += num_steps
    if num_shares == num_replicas:
        assert int(dealer.state.dropped) == 0


def check(accepted, first, num_steps, num_shares):
    by_step = {}
    for step, unit, replica in accepted:
        by_step.setdefault(step, []).append((unit, replica))
    assert sorted(by_step) == list(range(first, first + num_steps))
    for taken in by_step.values():
        assert len(taken) == num_shares == len({replica for _, replica in taken})
    units = sorted(unit for _, unit, _ in accepted)
    assert units == list(range(first * num_shares, (first + num_steps) * num_shares))
