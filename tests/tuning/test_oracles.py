"""Keras Tuner's oracles: they choose within the space, and repeat what a journal tells."""

import itertools

import pytest

from kdist.config.schema import TunerConfig
from kdist.config.space import read_space
from kdist.errors import ConfigError
from kdist.tuning.objective import Objective
from kdist.tuning.oracles import Suggestion, make_chooser

SPACE = read_space(
    {
        "model": {"type": "choice", "values": ["mlp", "cnn"]},
        "lr": {"type": "float", "min": 1e-4, "max": 1e-1, "sampling": "log"},
        "model.filters": {
            "type": "choice",
            "values": [[8], [8, 16], None],
            "when": {"model": "cnn"},
        },
        "units": {"type": "int", "min": 8, "max": 64, "step": 2, "sampling": "log"},
        "wide": {"type": "bool", "when": {"model": ["mlp"]}},
    }
)
LOSS = Objective("val_loss", "min")


class Search:
    """Asks an oracle and writes down what it says, as a search does."""

    def __init__(self, folder, name, space=SPACE, seed=0, entries=(), **tuner):
        self.entries = list(entries)
        config = TunerConfig(name=name, num_initial_points=3, **tuner)
        self.chooser = make_chooser(config, space, LOSS, seed=seed, max_epochs=9, search_dir=folder)
        self.chooser.replay(self.entries)

    def ask(self):
        answer = self.chooser.ask()
        if isinstance(answer, str):
            self.entries.append({"do": "idle"})
        else:
            self.entries.append({"do": "create", "id": answer.id, "raw": dict(answer.raw)})
        return answer

    def end(self, trial, score):
        status = "failed" if score is None else "completed"
        self.entries.append(
            {"do": "end", "id": trial, "status": status, "score": score, "best_epoch": 1}
        )
        self.chooser.tell(trial, {"val_loss": 1.0, "loss": 2.0}, 1)
        self.chooser.end(trial, score=score, best_epoch=1)


def score_of(number):
    """Some trial is left running, another has failed."""
    return {2: None}.get(number, ((number * 7) % 10) / 10)


@pytest.mark.parametrize("name", ["random", "grid", "bayesian", "hyperband"])
def test_values_are_plain_and_conditions_hold(tmp_path, name):
    search = Search(tmp_path, name)
    for number in range(5):
        values = search.ask().values
        assert 1e-4 <= values["lr"] <= 1e-1
        assert values["units"] in (8, 16, 32, 64)
        assert type(values["units"]) is int
        if values["model"] == "cnn":
            assert values["model.filters"] in ([8], [8, 16], None)
            assert "wide" not in values
        else:
            assert type(values["wide"]) is bool
            assert "model.filters" not in values
        search.end(f"{number:04d}", score_of(number))


@pytest.mark.parametrize(
    ("name", "num"), [("random", 6), ("grid", 6), ("bayesian", 2), ("hyperband", 11)]
)
def test_a_new_oracle_goes_on_where_the_journal_ends(tmp_path, name, num):
    first = Search(tmp_path / "a", name)
    for number in range(num):
        answer = first.ask()
        if isinstance(answer, Suggestion) and number != 3:
            first.end(answer.id, score_of(number))
    again = Search(tmp_path / "b", name, entries=first.entries)
    for _ in range(2):
        assert again.ask() == first.ask()


def test_what_was_chosen_by_a_model_is_not_computed_again(tmp_path, monkeypatch):
    first = Search(tmp_path / "a", "bayesian", space=SPACE[1:2])
    for number in range(4):
        first.end(first.ask().id, number / 10)
    fits = []
    kind = "sklearn.gaussian_process.GaussianProcessRegressor"
    monkeypatch.setattr(f"{kind}.fit", lambda *args: fits.append(args))
    again = Search(tmp_path / "b", "bayesian", space=SPACE[1:2], entries=first.entries)
    assert not fits
    monkeypatch.undo()
    assert again.ask().id == "0004"


def test_a_seed_gives_the_same_trials_and_another_one_others(tmp_path):
    def values(folder, seed):
        search = Search(tmp_path / folder, "random", seed=seed)
        return [search.ask().values for _ in range(3)]

    assert values("a", 0) == values("b", 0)
    assert values("c", 1) != values("a", 0)


def test_a_grid_has_every_combination_once(tmp_path):
    space = read_space(
        {
            "model": {"type": "choice", "values": ["mlp", "cnn"]},
            "units": {"type": "int", "min": 1, "max": 3},
            "wide": {"type": "bool", "when": {"model": "cnn"}},
        }
    )
    search = Search(tmp_path, "grid", space=space)
    found = []
    while isinstance(answer := search.ask(), Suggestion):
        found.append(tuple(answer.values.values()))
        search.end(answer.id, 0.5)
    assert answer == "STOPPED"
    wanted = [("mlp", units) for units in (1, 2, 3)]
    wanted += [("cnn", units, wide) for units, wide in itertools.product((1, 2, 3), (False, True))]
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_hyperband_goes_on_from_the_better_trials(tmp_path):
    search = Search(tmp_path, "hyperband")
    for number in range(9):
        search.end(search.ask().id, float(number))
    going_on = search.ask()
    assert going_on.parent == "0000"  # The best.
    assert (going_on.initial_epoch, going_on.epochs) == (1, 3)


def test_a_journal_of_another_oracle_is_refused(tmp_path):
    first = Search(tmp_path / "a", "random")
    first.ask()
    [entry] = first.entries
    with pytest.raises(ConfigError, match="does not repeat trial 0007"):
        Search(tmp_path / "b", "random", entries=[{**entry, "id": "0007"}])
