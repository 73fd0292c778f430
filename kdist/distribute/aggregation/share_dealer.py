"""Who computes which share of which step: the rules of synchronous training on servers.

A global batch is dealt in N shares; share `unit` is share `unit % N` of batch `unit // N`. Each of
M replicas asks for a share, computes it from the parameters of the current step, and offers it.
The first N that are offered make the step; a later one is stale, is dropped and counted, and its
rows are dealt again. Everything here is a pure function of tensors. The first server runs it under
its lock, so that all replicas meet one order of events.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# What an answer begins with: compute a share, ask again once the step is over, or end.
WORK, WAIT, DONE = 0, 1, 2
_NOBODY = -1
_NUM_SCALARS = 8
# Above any number of shares in a stretch.
_FAR = 1 << 40


class Dealing(NamedTuple):
    """The state of dealing; int64 scalars, then vectors over the N shares of a step, then over M.

    Attributes:
        stretch: Counts stretches of steps; a dispatch of another stretch ends.
        step: The current step.
        stop: The first step that is not part of the stretch.
        fresh: The next share that nobody was dealt yet.
        returned: A dropped share that waits to be dealt again, or -1.
        count: Shares of the current step that were accepted.
        dropped: Shares that were refused since the beginning.
        issued: Tickets issued since the beginning; each dealt share has one, from 1 on.
        accepted: Replicas whose shares were accepted for the current step, `count` of them.
        accepted_units: Those shares.
        last: The replicas whose shares make the step before, in the order of their shares.
        ticket: The last ticket of each replica.
        held: The share that each replica computes, or -1.
        held_step: The step that it was dealt for.
        contributed: The last step that each replica's share was accepted for, or -1.
        waiting: 1 for each replica that waits for the end of the step.
        ended: The last stretch whose end each replica was told.
    """

    stretch: Any
    step: Any
    stop: Any
    fresh: Any
    returned: Any
    count: Any
    dropped: Any
    issued: Any
    accepted: Any
    accepted_units: Any
    last: Any
    ticket: Any
    held: Any
    held_step: Any
    contributed: Any
    waiting: Any
    ended: Any


class Verdict(NamedTuple):
    """What became of an offer: whether it was accepted, for which step and share, and who wakes."""

    is_accepted: Any
    step: Any
    unit: Any
    num_woken: Any


def first_dealing(num_shares: int, num_replicas: int) -> Dealing:
    """Return the state before the first stretch, for N shares a step and M replicas."""
    zero = tf.constant(0, tf.int64)
    nobody = tf.constant(_NOBODY, tf.int64)
    shares = tf.zeros([num_shares], tf.int64)
    zeros = tf.zeros([num_replicas], tf.int64)
    none = tf.fill([num_replicas], nobody)
    return Dealing(
        zero, zero, zero, zero, nobody, zero, zero, zero,
        shares, shares, shares, zeros, none, zeros, none, zeros, zeros,
    )  # fmt: skip


def packed(dealing: Dealing) -> tf.Tensor:
    """Return the state as one int64 vector."""
    return tf.concat([tf.stack(dealing[:_NUM_SCALARS]), *dealing[_NUM_SCALARS:]], 0)


def unpacked(vector: Any, num_shares: int, num_replicas: int) -> Dealing:
    """Return the state that `packed` made a vector of."""
    scalars, *vectors = tf.split(vector, _sizes(num_shares, num_replicas))
    return Dealing(*tf.unstack(scalars, _NUM_SCALARS), *vectors)


def unpacked_array(vector: np.ndarray, num_shares: int, num_replicas: int) -> Dealing:
    """Return the same of an array, as arrays."""
    ends = np.cumsum(_sizes(num_shares, num_replicas))[:-1]
    scalars, *vectors = np.split(vector, ends)
    return Dealing(*scalars, *vectors)


def _sizes(num_shares: int, num_replicas: int) -> list[int]:
    return [_NUM_SCALARS, *[num_shares] * 3, *[num_replicas] * 6]


def opened(dealing: Dealing, first_step: Any, num_steps: Any) -> Dealing:
    """Return the state at the beginning of a stretch of steps; shares under way are void."""
    num_shares = tf.cast(tf.size(dealing.last), tf.int64)
    return dealing._replace(
        stretch=dealing.stretch + 1,
        step=first_step,
        stop=first_step + num_steps,
        fresh=first_step * num_shares,
        returned=tf.fill([], tf.constant(_NOBODY, tf.int64)),
        count=tf.zeros([], tf.int64),
        held=tf.fill(tf.shape(dealing.held), tf.constant(_NOBODY, tf.int64)),
        contributed=tf.fill(tf.shape(dealing.held), tf.constant(_NOBODY, tf.int64)),
    )


def offered(dealing: Dealing, replica: Any, ticket: Any) -> tuple[Dealing, Verdict]:
    """Take the share that a replica was dealt under `ticket`, or refuse it.

    A share is refused if its step is over, if somebody else's copy of it was taken, or if it
    belongs to a stretch that is over. An accepted share is void for all others who compute it.
    """
    unit = dealing.held[replica]
    is_mine = tf.equal(ticket, dealing.ticket[replica])
    is_current = tf.logical_and(
        tf.equal(dealing.held_step[replica], dealing.step), dealing.step < dealing.stop
    )
    accepted = tf.reduce_all([is_mine, unit >= 0, is_current])
    nobody = tf.constant(_NOBODY, tf.int64)
    place = tf.one_hot(dealing.count, tf.size(dealing.last), True, False, dtype=tf.bool)
    place = tf.logical_and(place, accepted)
    is_void = tf.logical_and(accepted, tf.equal(dealing.held, unit))
    taken = dealing._replace(
        accepted=tf.where(place, replica, dealing.accepted),
        accepted_units=tf.where(place, unit, dealing.accepted_units),
        count=dealing.count + tf.cast(accepted, tf.int64),
        dropped=dealing.dropped
        + tf.cast(tf.logical_and(is_mine, tf.logical_not(accepted)), tf.int64),
        held=tf.where(is_void, nobody, dealing.held),
        returned=tf.where(
            tf.logical_and(accepted, tf.equal(dealing.returned, unit)), nobody, dealing.returned
        ),
        contributed=_changed(dealing.contributed, replica, dealing.step, accepted),
    )
    completed, num_woken = _completed(taken)
    return completed, Verdict(accepted, dealing.step, unit, num_woken)


def dealt(dealing: Dealing, replica: Any, stretch: Any) -> tuple[Dealing, tf.Tensor]:
    """Deal a replica its next share; return the answer as well.

    A replica that asks again, because a lost worker's dispatch is run by another one, gets the
    share that it held. A replica computes one share a step. When no share is left that nobody
    computes, it gets a copy of one that somebody else holds, so that no step waits for a slow
    worker as long as N others are there.

    Returns:
        The state, and the answer: int64 `[kind, ticket, step, share, *last]`.
    """
    num_shares = dealing.last.shape[0]
    is_open = tf.logical_and(tf.equal(stretch, dealing.stretch), dealing.step < dealing.stop)
    mine = dealing.held[replica]
    resumes = tf.reduce_all(
        [is_open, mine >= 0, tf.equal(dealing.held_step[replica], dealing.step)]
    )
    may_take = tf.reduce_all(
        [
            is_open,
            tf.logical_not(resumes),
            tf.not_equal(dealing.contributed[replica], dealing.step),
        ]
    )
    is_returned = dealing.returned >= 0
    is_fresh = tf.logical_and(
        tf.logical_not(is_returned), dealing.fresh < dealing.stop * num_shares
    )
    is_free = tf.logical_or(is_returned, is_fresh)
    other = tf.where(mine >= 0, mine, _copy_of_held(dealing))
    unit = tf.where(is_returned, dealing.returned, tf.where(is_fresh, dealing.fresh, other))
    takes = tf.logical_and(may_take, unit >= 0)
    takes_free = tf.logical_and(takes, is_free)
    works = tf.logical_or(takes, resumes)
    waits = tf.logical_and(is_open, tf.logical_not(works))
    issued = dealing.issued + tf.cast(takes, tf.int64)
    after = dealing._replace(
        fresh=dealing.fresh + tf.cast(tf.logical_and(takes, is_fresh), tf.int64),
        returned=tf.where(takes_free, mine, dealing.returned),
        issued=issued,
        ticket=_changed(dealing.ticket, replica, issued, takes),
        held=_changed(dealing.held, replica, unit, takes),
        held_step=_changed(dealing.held_step, replica, dealing.step, takes),
        waiting=_changed(dealing.waiting, replica, tf.cast(waits, tf.int64), True),
        ended=_changed(dealing.ended, replica, stretch, tf.logical_not(is_open)),
    )
    kind = tf.where(is_open, tf.where(works, WORK, WAIT), DONE)
    head = [tf.cast(kind, tf.int64), after.ticket[replica], after.step, after.held[replica]]
    return after, tf.concat([tf.stack(head), after.last], 0)


def _completed(dealing: Dealing) -> tuple[Dealing, tf.Tensor]:
    """Go on to the next step if this one has all its shares; return how many replicas to wake."""
    is_complete = tf.equal(dealing.count, tf.cast(tf.size(dealing.last), tf.int64))
    in_order = tf.gather(dealing.accepted, tf.argsort(dealing.accepted_units))
    num_waiting = tf.reduce_sum(dealing.waiting)
    zero = tf.constant(0, tf.int64)
    after = dealing._replace(
        step=dealing.step + tf.cast(is_complete, tf.int64),
        count=tf.where(is_complete, zero, dealing.count),
        last=tf.where(is_complete, in_order, dealing.last),
        waiting=tf.where(is_complete, tf.zeros_like(dealing.waiting), dealing.waiting),
    )
    return after, tf.where(is_complete, num_waiting, zero)


def _copy_of_held(dealing: Dealing) -> tf.Tensor:
    """Return a share that others hold: one that the fewest compute for this step, the oldest."""
    is_same = tf.equal(dealing.held[:, tf.newaxis], dealing.held[tf.newaxis, :])
    is_current = tf.equal(dealing.held_step, dealing.step)
    holders = tf.reduce_sum(tf.cast(tf.logical_and(is_same, is_current), tf.int64), 1)
    preference = tf.where(dealing.held >= 0, holders * _FAR + dealing.held, tf.int64.max)
    return dealing.held[tf.argmin(preference)]


def _changed(values: Any, index: Any, value: Any, condition: Any) -> tf.Tensor:
    """Return a vector with the element at `index` replaced where the condition holds."""
    at = tf.one_hot(index, tf.size(values), True, False, dtype=tf.bool)
    return tf.where(tf.logical_and(at, condition), value, values)
