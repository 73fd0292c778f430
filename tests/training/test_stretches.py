"""How long a stretch of steps is."""

import pytest

from kdist.training.stretches import TARGET_S, Pace


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
    pace.observe(12, TARGET_S * 12 / 31)
    assert pace.next_steps == 24


def test_batch_hooks_are_called_after_every_call():
    pace = Pace(steps_per_call=4, calls_at_once=1, has_batch_hooks=True)
    pace.observe(4, 0.001)
    assert pace.next_steps == 4
