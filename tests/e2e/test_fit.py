"""`kdist.fit` from a script as users write them: unguarded, with lambdas and closures."""

import json
from pathlib import Path

import pytest

from .kit import leftovers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

SCRIPT = Path(__file__).parent / "own" / "fit_script.py"


@pytest.fixture(scope="module")
def script(shared):
    command = shared.run(program=(str(SCRIPT),), deadline_s=140)
    assert (command.code, leftovers(command)) == (0, {}), command.evidence()
    return command


@pytest.fixture
def answers(script):
    return json.loads(script.stdout.splitlines()[-1])


@pytest.mark.parametrize("strategy", ["single", "ps"])
def test_it_trains_and_tells(answers, strategy):
    told = answers[strategy]
    assert (told["status"], told["strategy"], told["batches_seen"]) == ("completed", strategy, 16)
    names = ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert sorted(told["metrics"]) == names
    assert {name: told["history"][name] for name in names} == dict.fromkeys(names, 2)


def test_callbacks_run(answers, shared):
    assert (shared.folder / "epochs.txt").read_text() == "0\n1\n"


def test_the_model_comes_back(answers):
    assert answers["shape"] == [5, 2]
    assert answers["own loss"][1] == [5, 2]


def test_ctrl_c_stops_training_and_returns_what_there_is(answers):
    assert answers["stopped"]["status"] == "stopped"
    assert 0 < answers["stopped"]["batches_seen"] < 8 * 100_000


def test_the_script_runs_once(script):
    assert script.stdout.count("strategy=ps: as configured") == 1


@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        ("no part", "ConfigError", '"train" part'),
        ("broken", "ConfigError", "ZeroDivisionError"),
        ("late", "TrainingError", "chief-0: IndexError: list index out of range"),
        ("batch size", "ConfigError", "data.batch_size must be at least 1"),
        ("strategy", "ConfigError", "Received: sync"),
        ("lock", "ConfigError", "lock' object. Make models, arrays"),
        ("folder", "RunFolderTakenError", "already holds a run"),  # A ConfigError.
    ],
)
def test_what_goes_wrong_is_an_exception_with_its_cause(answers, what, kind, said):
    assert answers[what] is not None
    assert answers[what][0] == kind
    assert said in answers[what][1]
