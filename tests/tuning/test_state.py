"""What a journal's entries come to: trials, scores, the best one."""

import json
import os

import pytest

from kdist.errors import ConfigError, EnvironmentFault
from kdist.training.report.formats import duration_text
from kdist.tuning.journal import Journal, read_journal
from kdist.tuning.objective import Objective
from kdist.tuning.table import line_of
from kdist.tuning.trials import COMPLETED, FAILED, RUNNING

from .entries import create, end, epoch, start, state

LOSS = Objective.of("val_loss", None)
ACCURACY = Objective.of("val_accuracy", None)


def test_the_objective_is_taken_at_its_best_epoch():
    trial = state(create("0"), start("0"), epoch("0", 1, 0.7), epoch("0", 2, 0.4)).trials["0"]
    assert trial.best_point(LOSS) == (0.4, 2)
    assert trial.curve(LOSS) == {1: 0.7, 2: 0.4}


def test_direction_follows_the_name():
    assert LOSS.direction == "min"
    assert ACCURACY.direction == "max"
    assert Objective.of("val_loss", "max").direction == "max"


def test_executions_count_by_their_mean():
    entries = [create("0"), start("0"), epoch("0", 1, 0.2), epoch("0", 2, 0.6)]
    entries += [start("0", 2), epoch("0", 1, 0.6, 2), epoch("0", 2, 0.4, 2)]
    trial = state(*entries).trials["0"]
    assert trial.curve(LOSS) == {1: pytest.approx(0.4), 2: pytest.approx(0.5)}
    assert trial.best_point(LOSS) == (pytest.approx(0.4), 1)
    assert trial.best_run_dir(LOSS) == "/runs/0-1"


def test_a_run_that_goes_on_forgets_what_it_trains_again():
    entries = [create("0"), start("0"), epoch("0", 1, 0.5), epoch("0", 2, 0.1)]
    trial = state(*entries, start("0", epoch=1)).trials["0"]
    assert trial.curve(LOSS) == {1: 0.5}


def test_a_retry_forgets_the_runs_of_the_attempt_but_not_why_it_failed():
    retry = {"do": "retry", "at_s": 12.0, "id": "0", "reason": "was killed"}
    trial = state(create("0"), start("0"), epoch("0", 1, 0.5), retry).trials["0"]
    assert trial.status == RUNNING
    assert trial.failures == ["was killed"]
    assert trial.failed_dirs == ["/runs/0-1"]
    assert not trial.executions


def test_the_best_trial_is_the_earliest_of_equals_and_never_a_failed_one():
    entries = [create(name) for name in "0123"]
    entries += [end("0", FAILED, reason="x"), end("1", COMPLETED, 0.3), end("2", COMPLETED, 0.3)]
    known = state(*entries)
    assert known.best(LOSS).id == "1"
    assert state(*entries, end("3", "pruned", 0.1)).best(LOSS).id == "3"
    assert state(create("0")).best(LOSS) is None


RETRY = {"do": "retry", "id": "0", "reason": "was killed"}


def after(entry, at_s):
    return {**entry, "at_s": at_s}


@pytest.mark.parametrize(
    ("between", "seconds"),
    [
        ([start("0", 2, at_s=14.0)], 5.5),
        ([after(RETRY, 11.0), start("0", at_s=15.0)], 1.5),
        ([after({"do": "stop"}, 12.0), after({"do": "go_on"}, 14.0), start("0", at_s=15.0)], 2.5),
        ([epoch("0", 1, 0.5), after({"do": "go_on"}, 14.0), start("0", at_s=15.0)], 1.5),
        ([epoch("0", 1, 0.5), start("0", at_s=15.0)], 1.5),
    ],
    ids=["two runs", "a retry", "a stop", "a search that was killed", "a tuner that was lost"],
)
def test_the_seconds_of_a_trial_are_those_in_which_it_ran(between, seconds):
    trial = state(create("0"), start("0"), *between, end("0", COMPLETED, 1.0)).trials["0"]
    assert trial.seconds == pytest.approx(seconds)


def test_a_trial_that_waits_does_not_grow_older():
    entries = [create("0"), start("0"), epoch("0", 1, 0.5)]
    running = state(*entries).trials["0"]
    assert line_of(running, state(*entries), LOSS, 15.0).seconds == duration_text(5.0)
    entries += [after({"do": "go_on"}, 14.0)]
    waiting = state(*entries).trials["0"]
    assert line_of(waiting, state(*entries), LOSS, 15.0).seconds == duration_text(1.0)


def test_failures_in_a_row_end_with_a_trial_that_came_to_an_end():
    entries = [create(name) for name in "0123"]
    entries += [end("0", FAILED), end("1", COMPLETED, 1.0), end("2", FAILED), end("3", FAILED)]
    assert state(*entries).num_failed_in_a_row == 2
    assert state(*entries[:5]).num_failed_in_a_row == 1


def test_values_that_are_not_finite_are_never_the_best():
    trial = state(create("0"), start("0"), epoch("0", 1, None)).trials["0"]
    assert trial.best_point(LOSS) == (None, None)


def test_a_journal_is_read_as_it_was_written(tmp_path):
    journal = Journal(tmp_path / "search.jsonl", clock=lambda: 5.0)
    written = journal.write("epoch", id="\udcfc", metrics={"loss": float("nan")})
    assert written == {"do": "epoch", "at_s": 5.0, "id": "\udcfc", "metrics": {"loss": None}}
    assert read_journal(tmp_path / "search.jsonl") == [written]
    assert read_journal(tmp_path / "nothing") == []


def begun(path, run_dir):
    fields = {"id": "0", "execution": 1, "epoch": 0, "tuner": "local"}
    return Journal(path).write("start", run_dir=str(run_dir), **fields)


def test_runs_of_a_search_that_was_moved_are_found_where_they_are_now(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    inside = begun(there / "search.jsonl", there / "trials" / "0000")
    outside = begun(there / "search.jsonl", tmp_path / "tuner0" / "trials" / "0001")
    assert read_journal(there / "search.jsonl") == [inside, outside]
    there.rename(here)
    (here / "trials" / "0001").mkdir(parents=True)  # Of another attempt.
    assert [entry["run_dir"] for entry in read_journal(here / "search.jsonl")] == [
        str(here / "trials" / "0000"),
        str(tmp_path / "tuner0" / "trials" / "0001"),
    ]


def test_absolute_paths_in_a_journal_name_the_folder_s_own_runs_if_it_has_them(tmp_path):
    (tmp_path / "trials" / "0-1").mkdir(parents=True)
    lines = [json.dumps(start("0")), json.dumps(start("0", 2))]
    (tmp_path / "search.jsonl").write_text("\n".join([*lines, ""]))
    found = [entry["run_dir"] for entry in read_journal(tmp_path / "search.jsonl")]
    assert found == [str(tmp_path / "trials" / "0-1"), "/runs/0-2"]


def test_a_line_that_a_kill_cut_off_is_left_out_and_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "search.jsonl"
    Journal(path).write("begin", settings={})
    with path.open("a") as file:
        file.write('{"do": "create", "id": "00')
    assert [entry["do"] for entry in read_journal(path)] == ["begin"]
    Journal(path).write("go_on")
    assert [entry["do"] for entry in read_journal(path)] == ["begin", "go_on"]


def test_a_disk_that_takes_a_part_of_a_line_is_told_and_spoils_nothing(tmp_path, monkeypatch):
    path = tmp_path / "search.jsonl"
    journal = Journal(path)
    journal.write("begin", settings={})
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:9]))
        with pytest.raises(EnvironmentFault, match="cannot be written: No space left"):
            journal.write("create", id="0000")
    assert [entry["do"] for entry in read_journal(path)] == ["begin"]
    journal.write("go_on")
    assert [entry["do"] for entry in read_journal(path)] == ["begin", "go_on"]


def test_another_file_of_that_name_is_refused(tmp_path):
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "bytes").write_bytes(b"\xff\n")
    (tmp_path / "folder").mkdir()
    for name in ("text", "bytes", "folder"):
        with pytest.raises(ConfigError, match="journal of the search cannot be read"):
            read_journal(tmp_path / name)


@pytest.mark.parametrize(
    "changed",
    [{"do": "create"}, {"do": "epoch", "id": "9"}, {"do": "begin", "settings": 3, "seed": 1}],
    ids=["without fields", "of no trial", "of another type"],
)
def test_entries_of_something_else_are_refused(changed):
    with pytest.raises(ConfigError, match="cannot be read: entry 2 is none of a search"):
        state(create("0"), changed)
