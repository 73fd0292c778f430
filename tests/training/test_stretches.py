"""How long a stretch of steps is."""

import pytest

from kdist.training.stretches import CALLS_A_STRETCH, LONGEST_S, TARGET_S, Pace


@pytest.mark.parametrize(
    ("num_steps", "elapsed_s", "next_steps"),
    [
        (10, TARGET_S, 10),  # As long as wanted: stay.
        (10, TARGET_S / 2, 20),
        (10, TARGET_S / 100, 40),  # Four times as long at most.
        (10, 0.0, 40),
        (10, 100 * TARGET_S, 1),  # Never less than one call.
    ],
)
def test_a_stretch_aims_at_one_second(num_steps, elapsed_s, next_steps):
    pace = Pace(steps_per_call=1, calls_at_once=1, has_batch_hooks=False)
    pace.observe(num_steps, elapsed_s)
    assert pace.next_steps == next_steps


def test_a_stretch_is_a_whole_number_of_calls_on_all_workers():
    pace = Pace(steps_per_call=4, calls_at_once=3, has_batch_hooks=False)
    assert pace.next_steps == 12
    pace.observe(6000, TARGET_S * 6000 / 10_003)
    assert pace.next_steps == 9996


@pytest.mark.parametrize(
    ("call_s", "stretch_s"),
    [
        (TARGET_S / CALLS_A_STRETCH / 10, TARGET_S),  # Many calls in a second: the end is short.
        (TARGET_S / CALLS_A_STRETCH * 2, 2 * TARGET_S),  # Long enough to make up for the end.
        (LONGEST_S / 8, LONGEST_S),  # Short enough to react.
        (LONGEST_S * 2, LONGEST_S * 2),  # One call on each worker.
    ],
)
def test_workers_seldom_wait_for_the_slowest_call(call_s, stretch_s):
    pace = Pace(steps_per_call=4, calls_at_once=3, has_batch_hooks=False)
    for _ in range(10):
        pace.observe(pace.next_steps, pace.next_steps / 12 * call_s)
    assert pace.next_steps / 12 * call_s == pytest.approx(stretch_s, rel=0.01)


def test_batch_hooks_are_called_after_every_call():
    pace = Pace(steps_per_call=4, calls_at_once=1, has_batch_hooks=True)
    pace.observe(4, 0.001)
    assert pace.next_steps == 4
