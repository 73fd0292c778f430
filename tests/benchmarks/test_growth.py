"""What the benchmarks of many workers, and of a slow one, make of what they have seen."""

import json

import pytest

from benchmarks import growth, slow_worker
from benchmarks.task_times import Seen, Timed, cpu_seconds_of, timed_between

COORDINATED = growth.Setting(mode="ps", steps_per_execution=10, workers=(1, 8))
CLIENTS = growth.Setting(mode="ps_between", steps_per_execution=10, workers=(1, 8))


def timed(num_steps, **cpu_s):
    by_task = {task.replace("_", "-"): seconds for task, seconds in cpu_s.items()}
    return Timed(num_steps=num_steps, seconds=10.0, cpu_s=by_task)


def test_costs_by_kind_of_task():
    cpu = {"chief_0": 0.4, "worker_0": 2.0, "worker_1": 4.0, "ps_0": 1.0, "ps_1": 3.0}
    row = growth.row_of(COORDINATED, 2, timed(1000, **cpu), 52.0, 0.3)
    assert (row.steps_per_second, row.chief_ms, row.dispatch_ms) == (100.0, 0.4, 4.0)
    assert (row.worker_ms, row.server_ms) == (6.0, 2.0)
    assert row.percent == pytest.approx(96.15, abs=0.01)


def test_clients_have_no_dispatches():
    row = growth.row_of(CLIENTS, 1, timed(100, worker_0=1.0, ps_0=0.1), None, 0.0)
    assert (row.chief_ms, row.dispatch_ms, row.percent) == (None, None, None)


def rows_like(**changes):
    reached = {
        "mode": "ps",
        "steps_per_execution": 10,
        "workers": 8,
        "steps_per_second": 70.0,
        "percent": 95.0,
        "chief_ms": 0.3,
        "dispatch_ms": 3.4,
        "worker_ms": 5.0,
        "server_ms": 1.2,
    }
    return growth.Row(**{**reached, **changes})


@pytest.mark.parametrize(
    ("changes", "misses"),
    [
        ({}, ()),
        ({"percent": 89.0}, ("growth",)),
        ({"percent": 81.0, "workers": 16}, ()),
        ({"chief_ms": 0.5}, ("coordinator",)),
        ({"chief_ms": 2.5, "dispatch_ms": 2.5, "steps_per_execution": 1}, ()),
        ({"chief_ms": 3.5, "dispatch_ms": 3.5, "steps_per_execution": 1}, ("dispatch",)),
        ({"server_ms": 1.6, "percent": 50.0}, ("growth", "server")),
        ({"server_ms": 1.6, "workers": 1, "percent": 100.0}, ()),  # Idle costs count for more.
        ({"error": "no speed"}, ("failed",)),
    ],
)
def test_verdicts(changes, misses):
    assert rows_like(**changes).misses == misses


def test_table_and_json():
    rows = [
        rows_like(),
        rows_like(workers=16, percent=70.0, load=3.0),
        growth.Row(mode="ps_between", steps_per_execution=10, workers=1, error="ConfigError: no"),
    ]
    assert growth.render(rows).splitlines()[2:] == [
        "ps             10        8     70.0     95%         3.40      0.30       5.00       1.20"
        "   0.0  ok",
        "ps             10       16     70.0     70%         3.40      0.30       5.00       1.20"
        "   3.0  growth MISSED",
        "ps_between     10        1        -       -            -         -          -          -"
        "   0.0  ConfigError: no",
    ]
    written = json.loads(json.dumps(growth.as_json(rows), allow_nan=False))
    assert [row["misses"] for row in written["rows"]] == [[], ["growth"], ["failed"]]
    assert written["wanted"]["percent"]["16"] == 80.0


MOMENTS = [
    Seen(time=10.0, steps=40, cpu_s={"ps-0": 1.0}),
    Seen(time=12.0, steps=100, cpu_s={"ps-0": 1.5}),
    Seen(time=16.0, steps=300, cpu_s={"ps-0": 2.5}),
    Seen(time=21.0, steps=600, cpu_s={"ps-0": 4.5}),
]


def test_start_up_is_not_timed():
    found = timed_between(MOMENTS, warm_steps=50, timed_s=8.0)
    assert found == Timed(num_steps=500, seconds=9.0, cpu_s={"ps-0": 3.0})


@pytest.mark.parametrize(("warm_steps", "timed_s"), [(1000, 1.0), (50, 10.0)])
def test_timing_takes_its_time(warm_steps, timed_s):
    assert timed_between(MOMENTS, warm_steps=warm_steps, timed_s=timed_s) is None


def test_processor_time_of_a_process_with_any_name():
    line = "42 (a) b) S 1 42 42 0 -1 4194304 1 2 3 4 150 50 6 7 20 0 9 0 1 2 3"
    assert cpu_seconds_of(line) == pytest.approx(2.0)


def test_a_slow_worker_is_compared_with_healthy_ones():
    full, slow = slow_worker.SETTINGS[:2]
    rows = [
        slow_worker.row_of(full, timed(400), {}, 0.0),
        slow_worker.row_of(slow, timed(310), {full.name: 40.0}, 0.0),
        slow_worker.row_of(slow, timed(290), {full.name: 40.0}, 0.0),
        slow_worker.row_of(slow, Timed(error="not done after 9 s"), {full.name: 40.0}, 0.0),
    ]
    assert [row.verdict for row in rows] == ["", "ok", "MISSED", "not done after 9 s"]
    assert slow_worker.render(rows).splitlines()[3] == (
        "ps, 1 of 4 slow     31.0   0.78    0.75   0.0  ok"
    )


def test_command_lines():
    [backup] = [s for s in slow_worker.SETTINGS if s.mode == "ps_sync" and s.num_shares]
    arguments = slow_worker.arguments_of(backup, "/tmp/slow")
    assert {"strategy.replicas_to_aggregate=3", "strategy.total_replicas=4"} < set(arguments)
    assert "++model.slow_file=/tmp/slow" in arguments
    assert "strategy.replication=between_graph" in growth.arguments_of(CLIENTS, 8)
