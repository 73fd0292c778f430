"""What a search leaves in its folder, and what it shows while it runs."""

import io
import json
from pathlib import Path

import pytest
import yaml

from kdist.config.schema import Config, TunerConfig
from kdist.launch.request import Console
from kdist.records.result import blank_result, write_result
from kdist.records.run_folder import RunFolder
from kdist.tuning.console import SearchConsole
from kdist.tuning.journal import Journal, read_journal
from kdist.tuning.objective import Objective
from kdist.tuning.results import SearchResults, droppable
from kdist.tuning.trials import SearchState

from .entries import create, end, epoch

LOSS = Objective("val_loss", "min")


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "search", "tuner: {name: random}\n")


def run(folder, name, **config):
    """Make a run folder, as a trial leaves it."""
    path = folder.path / "trials" / name
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump({"epochs": 2, **config}))
    (path / "model.keras").write_text(name)
    write_result(path / "result.json", blank_result(status="completed", metrics={"val_loss": 0.5}))
    fields = {"id": name, "execution": 1, "run_dir": str(path), "epoch": 0, "tuner": "local"}
    return {"do": "start", "at_s": 1.0, **fields}


def results_of(folder, state, **tuner):
    config = Config(tuner=TunerConfig(**{"name": "random", **tuner}))
    return SearchResults(folder, config, {"resume": "auto", "epochs": 2}, state, LOSS)


def two_trials(folder, *more):
    entries = [create("0"), run(folder, "0"), epoch("0", 1, 0.9), end("0", "completed", 0.9)]
    entries += [create("1", values={"lr": 1e-4}), run(folder, "1", resume="/elsewhere")]
    entries += [epoch("1", 1, 0.5), end("1", "completed", 0.5), *more]
    return SearchState.of(entries)


def test_the_best_run_is_repeated_by_its_own_settings(folder):
    results_of(folder, two_trials(folder)).update()
    text = (folder.path / "best.yaml").read_text()
    assert text.startswith("# Trial 1: val_loss 0.5 at epoch 1.\n# Repeat it: python -m kdist")
    assert yaml.safe_load(text) == {"epochs": 2, "resume": "auto"}
    assert folder.model_keras.read_text() == "1"
    assert not Path(folder.model_keras.readlink()).is_absolute()


def test_a_better_trial_takes_the_place_of_the_best(folder):
    state = two_trials(folder)
    results = results_of(folder, state)
    results.update()
    for entry in (create("2"), run(folder, "2"), epoch("2", 1, 0.1), end("2", "completed", 0.1)):
        state.apply(entry)
    results.update()
    assert folder.model_keras.read_text() == "2"
    assert "Trial 2" in (folder.path / "best.yaml").read_text()


@pytest.mark.parametrize(("keep", "kept"), [("best", ["1"]), ("all", ["0", "1"])])
def test_checkpoints_of_old_trials_go(folder, keep, kept):
    results_of(folder, two_trials(folder), keep_checkpoints=keep).update()
    left = sorted(path.parent.name for path in folder.path.glob("trials/*/checkpoints"))
    assert left == kept


def test_hyperband_keeps_what_it_may_go_on_from():
    entries = [create(name) for name in "012"] + [create("3", parent="0"), create("4", parent="1")]
    entries += [end(name, "completed", float(name)) for name in "0123"]
    state = SearchState.of(entries)
    best = state.best(LOSS)
    assert best.id == "0"
    dropped = {
        (tuner, is_over): [t.id for t in droppable(state, best, is_over=is_over, tuner=tuner)]
        for tuner in ("random", "hyperband")
        for is_over in (False, True)
    }
    assert dropped["random", False] == ["2", "3"]  # 1 is needed: 4 goes on from it now.
    assert dropped["hyperband", False] == []
    assert dropped["hyperband", True] == ["2", "3"]


def test_the_result_is_the_best_run_s_and_says_how_the_search_went(folder):
    state = two_trials(folder, create("2"), end("2", "failed", reason="was killed"))
    results_of(folder, state).conclude(status="completed", seconds=3.5)
    result = json.loads(folder.result_json.read_text())
    assert (result["status"], result["metrics"]) == ("completed", {"val_loss": 0.5})
    assert result["seconds"]["total"] == 3.5
    assert result["search"]["failed"] == 1
    best = result["search"]["best"]
    assert (best["trial"], best["value"], best["values"]) == ("1", 0.5, {"lr": 1e-4})
    assert (folder.path / "search.png").stat().st_size > 5000


def test_results_of_a_search_that_was_moved_are_those_of_its_best_run(folder, tmp_path):
    journal = Journal(folder.path / "search.jsonl")
    for entry in (create("0"), run(folder, "0"), epoch("0", 1, 0.5), end("0", "completed", 0.5)):
        journal.write(**entry)
    there, moved = folder.path / "trials" / "0", RunFolder(tmp_path / "moved")
    best = {"epoch": 1, "checkpoint": str(there / "checkpoints" / "step-4")}
    known = {"metrics": {"val_loss": 0.5}, "best": best, "run_dir": str(there)}
    write_result(there / "result.json", blank_result(status="completed", **known))
    folder.path.rename(moved.path)
    state = SearchState.of(read_journal(moved.path / "search.jsonl"))
    results_of(moved, state).conclude(status="completed", seconds=1.0)
    here = moved.path / "trials" / "0"
    result = json.loads(moved.result_json.read_text())
    assert result["metrics"] == {"val_loss": 0.5}
    assert result["best"] == {"epoch": 1, "checkpoint": str(here / "checkpoints" / "step-4")}
    assert result["search"]["best"]["run_dir"] == str(here)
    assert f",{here}," in (moved.path / "search.csv").read_text()
    assert f"--config-dir {moved.path} " in (moved.path / "best.yaml").read_text()


def test_a_search_without_an_end_has_a_result_too(folder):
    error = ValueError("no")
    state = SearchState.of([create("0"), end("0", "failed", reason="x")])
    results_of(folder, state).conclude(status="failed", seconds=1.0, error=error)
    result = json.loads(folder.result_json.read_text())
    assert (result["status"], result["error"]["message"]) == ("failed", "no")
    assert not (folder.path / "search.png").exists()


def shown(state, console, *trials):
    stream = io.StringIO()
    view = SearchConsole(console, state, LOSS, stream=stream, clock=lambda: 10.0)
    for trial in trials:
        view.changed(state.trials[trial])
    view.tick()
    view.close()
    view.final_table()
    return stream.getvalue()


def test_a_pipe_gets_a_line_for_each_event(folder):
    state = two_trials(folder, create("2"), end("2", "failed", reason="was killed"))
    lines = shown(state, Console(), "0", "1", "2").splitlines()
    assert lines[0].startswith("trial 0  completed  0.9000 at epoch 1  1/3 epochs")
    assert lines[1].endswith("best so far")
    assert lines[2] == "trial 2  failed: was killed"
    assert len(lines) == 3


def test_a_terminal_gets_a_table(folder):
    text = shown(two_trials(folder), Console(is_terminal=True, width=80), "0", "1")
    assert "objective" in text
    assert "lr=0.0001" in text
    assert "2 trials done, best val_loss 0.5 (trial 1)" in text
