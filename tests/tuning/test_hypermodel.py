"""A user's hypermodel: what it varies is found, and a run builds what a trial chose."""

import sys
import types

import keras
import keras_tuner
import pytest

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.config.schema import Config, TargetConfig, TunerConfig
from kdist.config.targets import call_target
from kdist.distribute import runtime
from kdist.errors import ConfigError
from kdist.tuning import hypermodel
from kdist.tuning.exploring import explore
from kdist.tuning.objective import Objective
from kdist.tuning.oracles import make_chooser
from kdist.tuning.orders import run_settings
from kdist.tuning.request import SearchRequest
from kdist.tuning.search import Search


class Widths(keras_tuner.HyperModel):
    def __init__(self, most=4):
        super().__init__()
        self.most = most

    def build(self, hp):
        depth = hp.Int("depth", 1, 2)
        layers = [keras.layers.Dense(hp.Int("width", 1, self.most))]
        with hp.conditional_scope("depth", [2]):
            if depth == 2:
                layers.append(keras.layers.Dense(hp.Choice("second", [5, 6])))
        return keras.Sequential([keras.Input((3,)), *layers])


def build_grown(hp):
    layers = [keras.layers.Dense(hp.Int(f"width{at}", 1, 4)) for at in range(hp.Int("depth", 1, 3))]
    return keras.Sequential([keras.Input((3,)), *layers])


def build_by_kind(hp):
    units = hp.Choice("units", [2, 3])
    if hp.Choice("kind", ["flat", "wide"]) == "wide" and hp.Boolean("twice"):
        units *= hp.Int("factor", 2, 4)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])


def build_broken(hp):
    raise RuntimeError("not for these values")


class TrainsByItself(Widths):
    def fit(self, hp, model, *args, **kwargs):
        return None


def build_narrow(hp, least=1):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(hp.Int("width", least, 2))])


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    module = types.ModuleType("my_hypermodels")
    module.__dict__.update(
        Widths=Widths, TrainsByItself=TrainsByItself, build_narrow=build_narrow, number=3
    )
    module.__dict__.update(build_grown=build_grown, build_broken=build_broken)
    module.__dict__.update(build_by_kind=build_by_kind)
    monkeypatch.setitem(sys.modules, "my_hypermodels", module)


def section(name, **arguments):
    return TargetConfig(target=f"my_hypermodels.{name}", arguments=arguments)


def chooser_of(tuner, target, folder):
    return make_chooser(
        TunerConfig(name=tuner),
        (),
        Objective("loss", "min"),
        seed=0,
        max_epochs=1,
        search_dir=folder,
        hypermodel=hypermodel.make(target),
    )


def test_its_hyperparameters_are_found_conditional_ones_too(tmp_path):
    chooser = chooser_of("grid", section("Widths", most=2), tmp_path)
    found = []
    while not isinstance(answer := chooser.ask(), str):
        found.append(answer.values)
        chooser.end(answer.id, score=1.0, best_epoch=1)
    assert len(found) == 2 + 2 * 2
    assert {"depth": 2, "width": 1, "second": 6} in found


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("build_grown", {"depth", "width0", "width1", "width2"}),
        ("build_by_kind", {"units", "kind", "twice"}),  # factor takes two values at once.
    ],
)
def test_hyperparameters_that_one_value_brings_are_found(tmp_path, name, names):
    """Behind a Python loop or `if`, where no conditional scope tells of them."""
    chooser = chooser_of("random", section(name), tmp_path)
    found = []
    for _ in range(6):
        answer = chooser.ask()
        found.append(answer.values)
        chooser.end(answer.id, score=1.0, best_epoch=1)
    assert all(values.keys() == names for values in found)
    assert len({tuple(values.values()) for values in found}) == 6


def test_a_seed_repeats_a_search_of_nested_hyperparameters(tmp_path):
    def build(hp):
        kind = hp.Choice("kind", ["a", "b"])
        with hp.conditional_scope("kind", ["b"]):
            if kind == "b":
                for at in range(hp.Int("xs", 1, 4)):
                    hp.Int(f"x{at}", 1, 9)
                for at in range(hp.Int("ys", 1, 4)):
                    hp.Int(f"y{at}", 1, 9)

    spaces = []
    for _ in range(4):
        oracle = keras_tuner.oracles.RandomSearchOracle(
            objective=keras_tuner.Objective("loss", "min"), seed=1
        )
        space = keras_tuner.HyperParameters()
        build(space)
        oracle.update_space(space)
        explore(oracle, types.SimpleNamespace(build=build), ())
        spaces.append([each.name for each in oracle.get_space().space])
    assert spaces == [spaces[0]] * 4
    assert {"x3", "y3"} <= set(spaces[0])


@pytest.mark.parametrize(
    ("name", "arguments", "values", "units"),
    [
        ("Widths", {"most": 9}, {"depth": 2, "width": 7, "second": 6}, [7, 6]),
        ("build_narrow", {"least": 1}, {"width": 2}, [2]),
    ],
)
def test_a_run_builds_what_a_trial_chose(name, arguments, values, units):
    config = Config(tuner=TunerConfig(name="random", hypermodel=section(name, **arguments)))
    model_section = run_settings(config, epochs=1, hypermodel_values=values)["model"]
    model = call_target("model", model_section)
    assert [layer.units for layer in model.layers] == units


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TrainsByItself", r"a fit\(\) of its own"),
        ("number", "must be a keras_tuner.HyperModel"),
        ("Nothing", "has no 'Nothing'"),
    ],
)
def test_what_cannot_be_a_hypermodel_is_refused(name, said):
    with pytest.raises(ConfigError, match=said):
        hypermodel.make(section(name))


def search_of(name, tmp_path):
    tuner = {"name": "random", "hypermodel": {"_target_": f"my_hypermodels.{name}"}}
    request = SearchRequest(
        config={"model": {}, "tuner": tuner},
        config_yaml="",
        typed_keys=(),
        spec=ClusterSpec({TaskType.CHIEF: ("localhost:0",)}),
        task=Task(TaskType.CHIEF, 0),
        run_dir=str(tmp_path / "search"),
        is_local=True,
        compose=lambda order: (),
    )
    return Search(request, link=None, stop=None, wake=None)


def test_a_search_that_is_refused_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "configure", lambda **options: None)
    with pytest.raises(ConfigError, match=r"must be a keras_tuner\.HyperModel"):
        search_of("number", tmp_path).run()
    assert not (tmp_path / "search").exists()


def test_whichever_trial_uses_what_is_not_searched_brings_the_warning(tmp_path):
    """All trials have the same names; their values decide."""
    search, said = search_of("build_by_kind", tmp_path), []
    console = types.SimpleNamespace(say=said.append)
    for index, twice in enumerate((False, True, True)):
        values = {"units": 2, "kind": "wide", "twice": twice}
        trial = types.SimpleNamespace(id=f"000{index}", values=values)
        search._warn_of_unsearched(hypermodel.make(section("build_by_kind")), trial, console)
    assert [text.partition(",")[0] for text in said] == [
        "Warning: trial 0001 uses the hyperparameter factor"
    ]


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("build_grown", {"depth": 1, "width0": 3}, {}),
        ("build_grown", {"depth": 3, "width0": 3}, {"width1": 1, "width2": 1}),
        ("Widths", {"depth": 1, "width": 2}, {}),
        ("Widths", {"depth": 2, "width": 2, "second": 6, "optimizer.learning_rate": 0.1}, {}),
        ("build_broken", {}, {}),
    ],
)
def test_hyperparameters_that_only_some_builds_declare_are_noticed(name, values, found):
    assert hypermodel.unsearched(hypermodel.make(section(name)), values) == found
