import multiprocessing
import resource

import pytest

from kdist.errors import EnvironmentFault
from kdist.records.events import EventLog, read_events


def test_events_are_appended_in_order_with_their_time(tmp_path):
    log = EventLog(tmp_path / "events.jsonl", clock=lambda: 12.3456789)
    log.write("task_started", task="worker-1", pid=42)
    log.write("epoch_ended", at_s=3.0, loss=float("nan"), note=None)
    assert (tmp_path / "events.jsonl").read_text() == (
        '{"time": 12.346, "event": "task_started", "task": "worker-1", "pid": 42}\n'
        '{"time": 3.0, "event": "epoch_ended", "loss": null}\n'
    )


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"time": 1.0, "event": "a"}\n{"time": 2.0, "ev')
    assert [event["event"] for event in read_events(path)] == ["a"]


def test_a_path_that_is_no_utf_8_is_kept(tmp_path):
    EventLog(tmp_path / "events.jsonl").write("run_started", run_dir="/gr\udcfcn")
    assert read_events(tmp_path / "events.jsonl")[0]["run_dir"] == "/gr\udcfcn"


def _append(path, name):
    log = EventLog(path)
    for index in range(200):
        log.write(name, index=index, filler="x" * 3000)


def test_two_processes_never_mix_their_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append, args=(path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    events = read_events(path)
    assert len(events) == 400
    for name in "ab":
        assert [e["index"] for e in events if e["event"] == name] == list(range(200))


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(EnvironmentFault, match="nowhere"):
        EventLog(tmp_path / "nowhere" / "events.jsonl").write("x")


def test_a_full_disk_takes_no_part_of_a_line(tmp_path):
    """A limit for the size of files stands for it."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("a")
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
    try:
        with pytest.raises(EnvironmentFault, match="No space left"):
            log.write("b", filler="x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.write("c")
    assert [event["event"] for event in read_events(path)] == ["a", "c"]
