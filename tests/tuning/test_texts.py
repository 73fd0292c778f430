"""What a search says and refuses in words, and who is who among several machines."""

import csv
import io

import pytest

from kdist.config.schema import Config, TunerConfig
from kdist.errors import ConfigError
from kdist.tuning.objective import Objective
from kdist.tuning.orders import run_name, run_settings, space_of, split_values
from kdist.tuning.role import LOCAL, Role, read_role
from kdist.tuning.settings import describe_changes, settings_of
from kdist.tuning.table import line_of, render_csv
from kdist.tuning.texts import finished_text, plan_text, unsearched_text
from kdist.tuning.trials import SearchState

from .entries import create, end, epoch, start, state

LOSS = Objective("val_loss", "min")
ENVIRON = {
    "KERASTUNER_TUNER_ID": "tuner0",
    "KERASTUNER_ORACLE_IP": "10.0.0.1",
    "KERASTUNER_ORACLE_PORT": "8000",
}


def test_roles_are_those_of_keras_tuner():
    assert read_role({}) == LOCAL
    assert read_role(ENVIRON) == Role(tuner_id="tuner0", host="10.0.0.1", port=8000)
    assert not read_role(ENVIRON).is_chief
    assert read_role({**ENVIRON, "KERASTUNER_TUNER_ID": "chief"}).is_chief
    assert read_role(ENVIRON).address == "10.0.0.1:8000"


@pytest.mark.parametrize("missing", list(ENVIRON))
def test_a_half_set_environment_is_refused(missing):
    given = {name: value for name, value in ENVIRON.items() if name != missing}
    with pytest.raises(ConfigError, match=f"without {missing}"):
        read_role(given)


@pytest.mark.parametrize("port", ["x", "0", "70000"])
def test_a_port_is_a_port(port):
    with pytest.raises(ConfigError, match="KERASTUNER_ORACLE_PORT must be a port"):
        read_role({**ENVIRON, "KERASTUNER_ORACLE_PORT": port})


def test_what_makes_trials_comparable_may_not_change():
    content = {
        "epochs": 3,
        "verbose": True,
        "tuner": {"max_trials": 3, "space": {"a.b": {"min": 1}}},
    }
    before = settings_of(content)
    assert before == {"epochs": 3, "tuner.space.a.b.min": 1}
    assert describe_changes(before, before) is None
    now = settings_of({"epochs": 3, "tuner": {"space": {"a.b": {"min": 2, "max": 3}}}})
    assert describe_changes(before, now) == (
        "tuner.space.a.b.min (1 before, 2 now), tuner.space.a.b.max (not there before, 3 now)"
    )


def test_a_finished_search_says_so_unless_more_trials_are_wanted(tmp_path):
    entries = [
        create("0000"),
        start("0000"),
        epoch("0000", 1, 0.25),
        end("0000", "completed", 0.25),
    ]
    going = state(*entries)
    over = state(*entries, {"do": "over", "at_s": 1.0, "reason": "max_trials"})
    assert finished_text(going, LOSS, 1, tmp_path) is None
    assert finished_text(over, LOSS, 2, tmp_path) is None
    assert finished_text(over, LOSS, 1, tmp_path) == (
        "This search is finished: 1 trials, best val_loss 0.25 (trial 0000). "
        f"Raise tuner.max_trials for more. See {tmp_path}.\n"
    )
    exhausted = state(*entries, {"do": "over", "at_s": 1.0, "reason": "exhausted"})
    assert "finished" in finished_text(exhausted, LOSS, 9, tmp_path)


def test_the_table_has_a_row_a_trial_and_a_column_a_key():
    entries = [create("0", values={"lr": 0.1}), create("1", values={"lr": 1e-5, "model": "cnn"})]
    entries += [start("0"), epoch("0", 1, 0.7), epoch("0", 2, 0.5), end("0", "completed", 0.5)]
    entries += [end("1", "failed", reason="was killed")]
    rows = list(csv.DictReader(io.StringIO(render_csv(state(*entries), LOSS))))
    assert [row["trial"] for row in rows] == ["0", "1"]
    assert (rows[0]["objective"], rows[0]["lr"], rows[0]["model"]) == ("0.5", "0.1", "")
    assert (rows[1]["lr"], rows[1]["model"], rows[1]["reason"]) == ("1e-05", "cnn", "was killed")


def test_a_line_of_the_live_table():
    entries = [create("0"), start("0"), epoch("0", 1, 0.71234)]
    known = state(*entries)
    line = line_of(known.trials["0"], known, LOSS, now_s=14.0)
    assert (line.status, line.objective, line.epoch, line.seconds, line.values) == (
        "running",
        "0.7123",
        "1/3",
        "4.00 s",
        "lr=0.1",
    )


def test_plan_of_a_search():
    config = Config(tuner=TunerConfig(name="random", max_trials=4, parallel_trials=2))
    assert plan_text(config, space_of(config), LOCAL) == (
        "Search: random, 4 trials of 20 epochs, 2 at a time\n"
        "Objective: val_loss, min\n"
        "Space:\n"
        "  optimizer.learning_rate  float 0.0001 to 0.1, log\n"
        "\n"
        "The first trial:\n"
    )


def test_each_run_of_a_trial_has_a_name_and_a_seed_of_its_own():
    assert run_name("0003", 1, 0) == "0003"
    assert run_name("0003", 2, 1) == "0003-run2-retry1"
    config = Config(seed=7)
    assert run_settings(config, epochs=3) == {"epochs": 3}
    assert run_settings(config, epochs=3, execution=3) == {"epochs": 3, "seed": 9}


def test_values_of_a_hypermodel_are_those_that_are_no_keys():
    space = space_of(Config())
    keys, names = split_values(space, {"optimizer.learning_rate": 0.1, "units": 3})
    assert (keys, names) == ({"optimizer.learning_rate": 0.1}, {"units": 3})


def test_an_empty_state_has_a_table():
    assert render_csv(SearchState(), LOSS).startswith("trial,status,objective")


def test_a_hyperparameter_that_is_not_searched_is_warned_of_by_name():
    text = unsearched_text("0002", "extra", 2)
    assert text.startswith("Warning: trial 0002 uses the hyperparameter extra, which is not search")
    assert "it is 2 in every trial" in text
