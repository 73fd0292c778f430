"""How many steps a between-graph worker takes at once."""

import pytest

from kdist.distribute.between_graph.ticket_size import TICKET_STEPS, TicketSize


@pytest.mark.parametrize(
    ("step_s", "most", "unit"),
    [
        (0.002, TICKET_STEPS, 10),  # Fast steps: few round trips.
        (0.045, 40, 1),  # A multiple of the longest call.
        (0.11, 10, 1),  # A call of ten takes a second: the last steps are taken one by one.
        (0.5, 4, 1),
        (3.0, 1, 1),
    ],
)
def test_a_ticket_takes_two_seconds_at_most(step_s, most, unit):
    size = TicketSize(unit=10)
    size.observe(10, 10 * step_s)
    assert (size.most, size.unit) == (most, unit)


def test_the_first_ticket_knows_no_speed():
    size = TicketSize(unit=10)
    assert (size.most, size.unit) == (TICKET_STEPS, 10)
