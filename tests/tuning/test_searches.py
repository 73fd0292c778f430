"""Whole searches: real commands, every trial in processes of its own."""

import json
import os
import signal

import keras
import pytest
import yaml

from kdist.launch.ports import find_free_ports
from tests.e2e.kit import leftovers, wait_until

from .searches import DATA, MODEL, OWN_MODEL

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

RATE = "tuner.space={optimizer.learning_rate: {type: float, min: 1e-3, max: 1e-1, sampling: log}}"
FAULTS = "tuner.space={{++model.fault: {{type: choice, values: [{}]}}}}"
SLOW = ("++callbacks.slow._target_=my_trials.Slow",)
HELD = "++callbacks.held._target_=my_trials.HeldUntilStopped"


def test_random_trials_side_by_side(search):
    space = (
        "tuner.space={optimizer.learning_rate: {type: float, min: 1e-3, max: 1e-1, sampling: log},"
        " model.units: {type: int, min: 4, max: 12, step: 4}}"
    )
    argv = ("+tuner=random", space, "tuner.max_trials=3", "tuner.parallel_trials=2", "epochs=2")
    first = search.run(*argv)
    assert "Search completed: 3 trials done, best val_loss" in first.stdout
    rows = search.rows
    assert [row["trial"] for row in rows] == ["0000", "0001", "0002"]
    assert {row["status"] for row in rows} == {"completed"}
    best = min(rows, key=lambda row: float(row["objective"]))
    for row in rows:
        losses = [float(each["val_loss"]) for each in search.trial(row["trial"]).rows]
        assert float(row["objective"]) == min(losses)
        assert search.trial(row["trial"]).result["status"] == "completed"
    config = yaml.safe_load((search.trial(best["trial"]).path / "config.yaml").read_text())
    assert config["model"]["units"] == int(best["model.units"])
    begun = [entry["at_s"] for entry in search.entries("start")]
    assert begun[1] < search.entries("end")[0]["at_s"]  # Two at a time.

    facts = search.result["search"]
    assert (facts["trials"], facts["best"]["trial"]) == (3, best["trial"])
    assert search.result["metrics"] == search.trial(best["trial"]).result["metrics"]
    assert (search.path / "search.png").stat().st_size > 10_000
    linked = (search.path / "model.keras").resolve()
    assert linked == (search.trial(best["trial"]).path / "model.keras").resolve()
    assert keras.saving.load_model(search.path / "model.keras").count_params() > 0
    kept = [path.parent.name for path in search.path.glob("trials/*/checkpoints")]
    assert kept == [best["trial"]]

    again = search.run(*argv)
    assert "This search is finished: 3 trials" in again.stdout
    assert len(search.rows) == 3
    changed = search.run(*argv, "tuner.space.model.units.max=16", code=2)
    assert "tuner.space.model.units.max (12 before, 16 now)" in changed.stderr

    search.bench.run(
        *("--config-dir", search.path, "--config-name", "best", "hydra.run.dir=repeated")
    )
    repeated = json.loads((search.folder / "repeated" / "result.json").read_text())
    assert repeated["metrics"] == search.trial(best["trial"]).result["metrics"]


def test_a_grid_with_trials_that_fail_and_are_killed(search):
    search.run(
        *("+tuner=grid", FAULTS.format("none, dies_once, raises"), *OWN_MODEL),
        *("epochs=1", "cluster.max_restarts=0", "tuner.keep_checkpoints=all"),
    )
    rows = {row["++model.fault"]: row for row in search.rows}
    assert [row["status"] for row in rows.values()] == ["completed", "completed", "failed"]
    assert (rows["dies_once"]["retries"], rows["raises"]["retries"]) == ("1", "1")
    assert "SIGKILL" in search.entries("retry")[0]["reason"]
    assert "this trial cannot be built" in rows["raises"]["reason"]
    assert (search.path / "trials" / "0001-retry1" / "result.json").exists()
    kept = [path.parent.name for path in search.path.glob("trials/*/checkpoints")]
    assert sorted(kept) == ["0000", "0001-retry1"]


def test_hyperband_goes_on_from_checkpoints(search):
    search.run("+tuner=hyperband", RATE, "tuner.max_epochs=2", "tuner.factor=2")
    [child] = [row for row in search.rows if row["parent"]]
    others = [row for row in search.rows if not row["parent"]]
    parent = search.trial(child["parent"])
    assert {row["epochs"] for row in others} == {"1", "2"}
    assert parent.result["resumed_from_step"] is None
    result = search.trial(child["trial"]).result
    assert result["resumed_from_step"] == parent.result["batches_seen"]
    assert result["batches_seen"] == 2 * parent.result["batches_seen"]
    epochs = [entry["epoch"] for entry in search.entries("epoch", id=child["trial"])]
    assert epochs == [2]


def test_a_killed_search_goes_on(search):
    argv = ("+tuner=random", RATE, "tuner.max_trials=3", "tuner.parallel_trials=2", "epochs=5")
    command = search.start(*argv, *SLOW)
    search.wait_for(1, "epoch", id="0000", epoch=2)
    wait_until(
        lambda: any((search.trial("0000").path / "checkpoints").glob("step-*")), 30, "a checkpoint"
    )
    os.kill(command.process.pid, signal.SIGKILL)
    command.wait(10)
    assert not leftovers(command, within_s=20)
    before = len(search.journal)
    search.run(*argv, *SLOW)
    created = [entry["id"] for entry in search.entries("create")]
    assert created == ["0000", "0001", "0002"]
    assert {row["status"] for row in search.rows} == {"completed"}
    again = [entry["id"] for entry in search.journal[before:] if entry["do"] == "start"]
    assert sorted(again) == ["0000", "0001", "0002"]
    assert search.trial("0000").result["resumed_from_step"] is not None
    for name in created:
        assert [row["epoch"] for row in search.trial(name).rows] == ["1", "2", "3", "4", "5"]


@pytest.mark.slow
def test_an_objective_that_is_no_metric_is_refused_within_the_first_trial(search):
    ended = search.run("+tuner=random", RATE, "tuner.objective=val_los", "epochs=9", code=2)
    assert "tuner.objective must be a metric" in ended.stderr
    assert "They have: loss, accuracy, val_loss, val_accuracy, learning_rate." in ended.stderr
    assert [row["trial"] for row in search.rows] == ["0000"]
    assert search.result["status"] == "failed"


@pytest.mark.slow
def test_where_all_trials_fail_the_first_cause_is_told(search):
    ended = search.run(
        *("+tuner=random", RATE, *OWN_MODEL, "loss=my_trials.loss", "epochs=3"),
        *("tuner.max_trials=2", "tuner.max_retries=0"),
        code=1,
    )
    assert "All 2 trials failed. The first cause (trial 0000): val_loss was nan" in ended.stderr
    assert search.result["error"]["message"].startswith("All 2 trials failed")
    again = search.run("+tuner=random", RATE, *OWN_MODEL, "loss=my_trials.loss", "epochs=3",
                       "tuner.max_trials=2", code=1)  # fmt: skip
    assert "no trial came to an end" in again.stdout


def test_two_tuners_and_a_chief(search):
    [port] = find_free_ports("127.0.0.1", 1)
    environ = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": str(port)}
    argv = ("+tuner=random", RATE, "tuner.max_trials=3", "epochs=4", *SLOW)
    tuners = [
        search.bench.start(
            *(*DATA, *MODEL, *argv, f"hydra.run.dir=tuner{number}"),
            KERASTUNER_TUNER_ID=f"tuner{number}",
            **environ,
        )
        for number in range(2)
    ]
    chief = search.start(*argv, KERASTUNER_TUNER_ID="chief", **environ)
    search.wait_for(2, "start")
    lost = search.entries("start", tuner="tuner0")[0]["id"]
    search.wait_for(1, "epoch", id=lost)
    os.kill(tuners[0].process.pid, signal.SIGKILL)
    for command in (chief, tuners[1]):
        assert command.wait(120).code == 0
    assert not leftovers(chief, *tuners)
    assert {row["status"] for row in search.rows} == {"completed"}
    assert len(search.entries("create")) == 3
    starts = search.entries("start", id=lost)
    assert [entry["tuner"] for entry in starts] == ["tuner0", "tuner1"]
    assert starts[0]["run_dir"] == starts[1]["run_dir"]
    assert f"tuner0 was lost; trial {lost} is handed out again." in chief.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        ("+strategy=ps", "cluster.workers=2", "cluster.ps=1"),
        ("+strategy=multiworker", "cluster.workers=2"),
    ],
    ids=["ps", "multiworker"],
)
def test_trials_under_a_strategy(search, strategy):
    search.run(
        *("+tuner=bayesian", RATE, "tuner.num_initial_points=2", "tuner.max_trials=3"),
        *(*strategy, "epochs=2"),
        deadline_s=300,
    )
    assert {row["status"] for row in search.rows} == {"completed"}
    for row in search.rows:
        result = search.trial(row["trial"]).result
        assert result["strategy"] == strategy[0].removeprefix("+strategy=")
        assert result["cluster"]["worker"] == 2


@pytest.mark.slow
def test_a_hypermodel_with_several_runs_a_trial(search):
    search.run(
        *("+tuner=grid", "tuner.hypermodel._target_=my_trials.Widths", *OWN_MODEL),
        *("tuner.executions_per_trial=2", "epochs=1"),
    )
    assert sorted(int(row["width"]) for row in search.rows) == [2, 3, 4]
    for row in search.rows:
        name = row["trial"]
        first, second = search.trial(name), search.trial(f"{name}-run2")
        configs = [
            yaml.safe_load((run.path / "config.yaml").read_text()) for run in (first, second)
        ]
        assert [config["seed"] for config in configs] == [0, 1]
        losses = [run.result["metrics"]["val_loss"] for run in (first, second)]
        assert float(row["objective"]) == pytest.approx(sum(losses) / 2, rel=1e-6)
        width = int(row["width"])
        model = keras.saving.load_model(first.path / "model.keras")
        assert model.layers[0].units == width
    best = yaml.safe_load((search.path / "best.yaml").read_text())
    assert best["model"]["_target_"] == "kdist.tuning.hypermodel.build"


@pytest.mark.slow
def test_hopeless_trials_are_stopped(search):
    rates = "tuner.space={optimizer.learning_rate: {type: choice, values: [0.03, 0.02, 1e-6]}}"
    search.run(
        *("+tuner=grid", rates, "tuner.pruner=median", "tuner.pruner_min_trials=2", "epochs=6"),
        *("tuner.pruner_min_epochs=2", *SLOW),
    )
    rows = search.rows
    assert [row["status"] for row in rows] == ["completed", "completed", "pruned"]
    assert "worse than the median of the others" in rows[2]["reason"]
    assert int(rows[2]["epochs"]) < 6
    assert search.trial("0002").result["status"] == "stopped"


@pytest.mark.slow
def test_ctrl_c_lets_trials_save_and_the_search_goes_on(search):
    argv = ("+tuner=random", RATE, "tuner.max_trials=2", "epochs=8", *SLOW)
    command = search.start(*argv)
    search.wait_for(1, "epoch", id="0000", epoch=2)
    os.kill(command.process.pid, signal.SIGINT)
    assert command.wait(60).code == 130
    assert not leftovers(command)
    assert search.result["status"] == "stopped"
    assert [row["status"] for row in search.rows] == ["running"]
    assert search.trial("0000").result["status"] == "stopped"
    search.run(*argv)
    assert search.trial("0000").result["resumed_from_step"] is not None
    assert [row["status"] for row in search.rows] == ["completed", "completed"]
    assert all("val_loss" in entry["metrics"] for entry in search.entries("epoch"))
    for row in search.rows:
        losses = [float(each["val_loss"]) for each in search.trial(row["trial"]).rows]
        assert (len(losses), float(row["objective"])) == (8, min(losses))


def test_a_search_that_is_stopped_in_its_first_epoch_goes_on(search):
    argv = ("+tuner=random", RATE, "tuner.max_trials=1", "tuner.max_retries=0", "epochs=2", HELD)
    command = search.start(*argv)
    wait_until(lambda: (search.folder / "held").exists(), 90, "a trial that trains")
    os.kill(command.process.pid, signal.SIGTERM)
    assert command.wait(60).code == 143
    [part] = search.trial("0000").rows
    assert (part["epoch"], part.get("val_loss")) == ("1", None)
    search.run(*argv)
    losses = [float(each["val_loss"]) for each in search.trial("0000").rows]
    assert [float(row["objective"]) for row in search.rows] == [min(losses)]
    assert len(losses) == len(search.entries("epoch")) == 2
