"""How the desk deals ids, in one process."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from kdist.distribute.between_graph.desk import Opened, TicketDesk, as_ticket

v1 = tf.compat.v1
STORE = SimpleNamespace(servers=[SimpleNamespace(device="", bucket_indices=[0])])


def dealt(num_ids, *, num_workers, most, unit, whole):
    """Return the sizes of all tickets of a range."""
    with tf.Graph().as_default(), v1.Session() as session:
        desk = TicketDesk(STORE, num_workers=num_workers)
        fields = tf.constant(Opened(next_id=5, end=5 + num_ids), tf.int64)
        opened = tf.function(desk.open, autograph=False)(fields)
        take = tf.function(lambda m, u: desk.take(m, u, whole), autograph=False)
        ticket = take(tf.constant(most, tf.int64), tf.constant(unit, tf.int64))
        session.run(v1.global_variables_initializer())
        session.run(opened)
        tickets = [as_ticket(session.run(ticket))]
        while tickets[-1].num_ids:
            tickets.append(as_ticket(session.run(ticket)))
    firsts, ends = [t.first for t in tickets], [t.end for t in tickets]
    assert (firsts[0], ends[-1]) == (5, 5 + num_ids) and firsts[1:] == ends[:-1]
    return [t.num_ids for t in tickets[:-1]]


@pytest.mark.parametrize(("unit", "rest"), [(1, [3, 2, 2, *[1] * 6]), (10, [10, 3])])
def test_tickets_are_full_calls_while_there_is_one_for_everybody(unit, rest):
    """Of half a worker's part: 55, 48, 40, 33, 25, 20, 15, 13, 10, 8, 5 and 3."""
    sizes = dealt(223, num_workers=2, most=30, unit=unit, whole=10)
    assert sizes == [30, 30, 30, 30, 20, 20, 10, 10, 10, 10, 10, *rest]


def test_a_slow_worker_takes_what_it_can_do_in_time():
    assert dealt(40, num_workers=2, most=4, unit=1, whole=10)[:8] == [4, 4, 4, 4, 4, 4, 4, 3]


def test_one_step_a_ticket_where_calls_are_single_steps():
    sizes = dealt(9, num_workers=2, most=3, unit=1, whole=1)
    assert sizes == [2, 1, 1, 1, 1, 1, 1, 1]
