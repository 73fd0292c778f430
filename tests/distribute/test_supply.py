"""How far the chief dispatches ahead of its workers."""

from kdist.distribute.loops.supply import AHEAD_S, ROUNDS_AHEAD, Supply


def test_it_begins_with_some_calls_for_each_worker():
    assert Supply(3).wanted(0, 0.0, steps_per_call=10) == (1 + ROUNDS_AHEAD) * 3 * 10


def test_fast_workers_get_what_lasts_until_the_next_look_and_longer():
    assert Supply(2).wanted(500, 0.5, steps_per_call=1) == 500 + 1000 * AHEAD_S


def test_the_speed_is_remembered_by_the_next_stretch():
    supply = Supply(2)
    supply.wanted(500, 0.5, steps_per_call=1)
    assert supply.wanted(0, 0.0, steps_per_call=1) == 1000 * AHEAD_S


def test_it_counts_whole_calls():
    supply = Supply(1)
    assert supply.wanted(1015, 1.0, steps_per_call=10) == 2030
