"""What `kdist.fit` asks its tasks to do; the launch itself is a fake."""

import pickle

import pytest
import yaml

import kdist
from kdist.api import fitting
from kdist.errors import ConfigError
from kdist.launch.local import LocalRun


@pytest.fixture
def asked(monkeypatch):
    """Return a function that calls `kdist.fit` and returns the requests that it led to."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    started = []

    def remember(requests):
        started.extend(requests)
        return LocalRun(exit_code=2, cause=None, run_dir=None, warnings=())

    monkeypatch.setattr(fitting, "run_tasks", remember)

    def ask(**options):
        started.clear()
        with pytest.raises(ConfigError):
            kdist.fit(lambda: None, dict, **options)
        return list(started)

    return ask


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "ps", "workers": 3, "ps": 1},
        {"config": {"strategy.name": "ps", "cluster.workers": 3, "cluster.ps": 1}},
    ],
    ids=["by argument", "by key"],
)
def test_the_strategy_may_be_named_either_way(asked, options):
    requests = asked(**options)
    tasks = [str(request.task) for request in requests]
    assert tasks == ["chief-0", "worker-0", "worker-1", "worker-2", "ps-0"]
    assert requests[0].config["strategy"]["name"] == "ps"
    assert requests[0].choice_line == "strategy=ps: as configured"


def test_without_a_strategy_devices_decide(asked):
    [request] = asked(config={"strategy.devices": 2})
    assert request.choice_line == "strategy=mirrored: strategy.devices=2"
    assert request.num_devices == 2


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"metrics": {"size": ["mae"], "digit": "accuracy"}},) * 2,
        ({"metrics": [["accuracy"], ["mae"]]},) * 2,
        ({"metrics": "mae", "callbacks": "one"}, {"metrics": ["mae"], "callbacks": ["one"]}),
        ({"metrics": ("mae",), "callbacks": ("one",)}, {"metrics": ["mae"], "callbacks": ["one"]}),
        ({"metrics": None, "callbacks": None}, {}),
        ({"metrics": {}, "callbacks": []}, {}),
    ],
    ids=["by output", "list of lists", "one", "tuples", "none", "empty"],
)
def test_metrics_and_callbacks_reach_the_tasks_in_every_form(asked, given, sent):
    [request] = asked(strategy="single", **given)
    objects = pickle.loads(request.objects)
    assert {key: objects[key] for key in ("metrics", "callbacks") if key in objects} == sent


def test_a_section_of_settings_leaves_the_arguments_in_place(asked):
    config = {"data": {"shuffle": False}, "strategy": {"update": "sync"}}
    request = asked(strategy="ps", batch_size=10, config=config)[0]
    assert request.config["data"] == {"batch_size": 10, "shuffle": False}
    assert (request.config["strategy"]["name"], request.config["strategy"]["update"]) == (
        "ps",
        "sync",
    )


def test_tasks_hear_what_was_typed(asked):
    """So that a model that comes compiled refuses it."""
    [request] = asked(strategy="single", loss="mse", metrics=[], config={"epochs": 2})
    assert request.typed_keys == ("epochs", "loss")


def test_settings_that_change_nothing_start_nothing(asked):
    assert asked(strategy="single", loss="mse", config={"loss": "mae"}) == []


def test_another_command_is_refused():
    with pytest.raises(ConfigError, match=r"trains\. Received: command=plan\."):
        kdist.fit(lambda: None, dict, config={"command": "plan"})


def test_a_run_that_had_trained_further_is_returned_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    (tmp_path / "result.json").write_text('{"status": "stopped"}')
    (tmp_path / "metrics.csv").write_text("epoch,loss\n1,0.5\n")
    ended = LocalRun(exit_code=0, cause=None, run_dir=None, warnings=())
    monkeypatch.setattr(fitting, "run_tasks", lambda requests: ended)
    result = kdist.fit(lambda: None, dict, strategy="single", run_dir=tmp_path)
    assert (result.status, result.history) == ("stopped", {"loss": [0.5]})


def test_a_task_of_tf_config_is_no_place_for_fit(asked, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}}')
    assert asked() == []
    with pytest.raises(ConfigError, match=r"Received: TF_CONFIG is set.*python -m kdist"):
        kdist.fit(lambda: None, dict)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": [1]}, r"config must be a mapping .* Received: \[1\]\."),
        ({"config": {5: 1}}, r"config must be a mapping .* Received: \{5: 1\}\."),
        ({"run_dir": 5}, r"run_dir must be a path\. Received: 5\."),
        (
            {"build_model": 5},
            r"takes functions.* Received: build_model=5\. .*returns a keras\.Model",
        ),
        ({"make_data": {"train": 1}}, r"Received: make_data=\{'train': 1\}\. .*returns the data\."),
    ],
    ids=["list", "number for a key", "number for a path", "number for a model", "data"],
)
def test_arguments_of_another_kind_are_named(options, message):
    functions = {"build_model": lambda: None, "make_data": dict}
    with pytest.raises(ConfigError, match=message):
        kdist.fit(**{**functions, "strategy": "single", **options})


class _Loss:
    """As a loss of Keras looks from outside, which is not imported here."""

    def __init__(self, delta):
        self.delta = delta

    def get_config(self):
        return {"name": "loss", "fn": print, "delta": self.delta, "rows": object()}


def test_config_yaml_tells_what_was_given(asked):
    [request] = asked(strategy="single", loss=_Loss(0.5), metrics=[len], optimizer=_Loss)
    assert yaml.safe_load(request.config_yaml)["given"] == {
        "optimizer": "_Loss",
        "loss": {"class": "_Loss", "delta": 0.5},
        "metrics": ["len"],
    }


def test_a_finished_run_of_another_loss_is_not_taken_for_this_one(asked, tmp_path):
    def ask(loss):
        return asked(strategy="single", loss=loss, run_dir=tmp_path)

    [request] = ask(_Loss(0.5))
    (tmp_path / "config.yaml").write_text(request.config_yaml)
    (tmp_path / "metrics.csv").write_text("epoch,loss\n1,0.5\n")
    (tmp_path / "result.json").write_text(
        '{"status": "completed", "epochs": 1, "steps_per_epoch": 1}'
    )
    with pytest.raises(ConfigError, match=r"loss\.delta was 0\.5, is 0\.25"):
        kdist.fit(lambda: None, dict, strategy="single", loss=_Loss(0.25), run_dir=tmp_path)
    again = kdist.fit(lambda: None, dict, strategy="single", loss=_Loss(0.5), run_dir=tmp_path)
    assert again.history == {"loss": [0.5]}
