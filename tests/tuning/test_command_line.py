"""What a search's command line means and refuses, before any process starts."""

import pickle

import pytest
from omegaconf import OmegaConf

from kdist.cli import main
from kdist.cli.arguments import parse
from kdist.cli.trials import TrialComposer
from kdist.tuning.request import TrialOrder

ENVIRON = ("TF_CONFIG", "KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command line in this process; return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    for name in ENVIRON:
        monkeypatch.delenv(name, raising=False)

    def run(*argv):
        code = main(argv)
        printed = capsys.readouterr()
        assert not list(tmp_path.iterdir())
        return code, printed.out, printed.err

    return run


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tuner.space={model.unitz: {type: bool}}"], "++model.unitz=..."),
        (["tuner.space={modle.units: {type: bool}}"], "no key modle.units"),
        (["tuner.space={data.batch_size: {type: int, min: 0, max: 8}}"], "(data.batch_size=0)"),
        (["tuner.space={epochs: {type: float, min: 1, max: 2.5}}"], "(epochs=2.5)"),
        (["tuner.space={model: {type: choice, values: [mlp, vgg]}}"], "model has no option vgg"),
        (["tuner.space={model: {type: choice, values: [mlp, 3]}}"], "options of the group model"),
        (
            [
                "tuner.space={model: {type: choice, values: [mlp, cnn]},"
                " model.filter: {type: bool, when: {model: cnn}}}"
            ],
            "model=cnn, model.filter=False",
        ),
        (["tuner.space={tuner.seed: {type: bool}}"], "cannot vary tuner.seed"),
        (["tuner.space={model.units: {type: int, min: 9, max: 3}}"], "min must be less than"),
        (["tuner.objectiv=loss"], "Did you mean tuner.objective?"),
        (["tuner.parallel_trials=0"], "tuner.parallel_trials must be at least 1"),
        (["tuner.direction=up"], "tuner.direction must be one of min, max"),
        (["command=evaluate", "run=x"], "A search trains"),
        (["tuner=hyperband", "tuner.pruner=median"], "hyperband stops hopeless trials by itself"),
    ],
)
def test_what_cannot_be_searched_is_refused(command, argv, said):
    group = [] if argv[0].startswith("tuner=") else ["+tuner=random"]
    code, _, errors = command(*group, *argv)
    assert code == 2
    assert said in errors


def test_several_searches_of_a_sweep_are_refused(command):
    code, _, errors = command("-m", "tuner=random,grid")
    assert code == 2
    assert "Start each search by itself" in errors


def test_tf_config_is_refused(command, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    code, _, errors = command("+tuner=random")
    assert code == 2
    assert "A search starts tasks of its own" in errors


def test_a_half_set_environment_is_refused(command, monkeypatch):
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "tuner0")
    code, _, errors = command("+tuner=random")
    assert code == 2
    assert "without KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT" in errors


def test_a_plan_shows_the_search_and_its_first_trial(command):
    code, shown, _ = command("+tuner=grid", "strategy=ps", "command=plan", "epochs=3")
    assert code == 0
    assert "Search: grid, as many trials as there are of 3 epochs, 1 at a time" in shown
    assert "optimizer.learning_rate  float 0.0001 to 0.1, log" in shown
    assert "Mode: ps" in shown


def trial_of(*argv, values, settings=None):
    compose = pickle.loads(pickle.dumps(TrialComposer(line=parse(argv))))
    order = TrialOrder(values=values, settings=settings or {}, run_dir="/runs/0000")
    return compose.composition(order)


def test_a_trial_is_the_same_command_line_with_its_values():
    composed = trial_of(
        *("+tuner=random", "tuner.max_trials=3", "model=mlp", "epochs=9", "seed=4"),
        values={"model": "cnn", "model.filters": [8, 16], "optimizer.learning_rate": 1e-5},
        settings={"epochs": 2, "resume": "auto"},
    )
    tree = OmegaConf.to_container(composed.tree)
    assert "tuner" not in tree
    assert tree["model"]["_target_"] == "kdist.models.cnn"
    assert tree["model"]["filters"] == [8, 16]
    assert (tree["optimizer"]["learning_rate"], tree["epochs"], tree["seed"]) == (1e-5, 2, 4)
    assert composed.typed_keys == (
        *("epochs", "seed", "model", "model.filters", "optimizer.learning_rate"),
    )
    assert str(composed.run_dir) == "/runs/0000"


@pytest.mark.parametrize(
    "value",
    ["plain", 'with "quotes"', "a, b=c", "", "1", "true", "ends\\", [1, "a"], {"k": [None]}, None,
     True, 3, 1e-7],
)  # fmt: skip
def test_every_plain_value_reaches_the_trial_as_it_is(value):
    composed = trial_of("+tuner=random", values={"++model.note": value})
    assert OmegaConf.to_container(composed.tree)["model"]["note"] == value
