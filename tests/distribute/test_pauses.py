"""How often a between-graph task asks while it waits."""

import pytest

from kdist.distribute.between_graph.pauses import LONGEST_S, SHORTEST_S, pause_s


@pytest.mark.parametrize(
    ("waited_s", "pause"),
    [(0.0, SHORTEST_S), (0.01, SHORTEST_S), (0.1, 0.01), (0.4, 0.04), (60.0, LONGEST_S)],
)
def test_a_pause_is_a_tenth_of_the_wait(waited_s, pause):
    assert pause_s(waited_s) == pytest.approx(pause)


def test_a_second_takes_few_questions():
    waited_s, num_asked = 0.0, 0
    while waited_s < 1.0:
        waited_s += pause_s(waited_s)
        num_asked += 1
    assert num_asked <= 60
