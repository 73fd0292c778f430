"""The one gate: what a configuration may hold, and how a fault is named."""

import dataclasses
import typing

import pytest

from kdist import config
from kdist.config.schema import Config, TargetConfig
from kdist.errors import ConfigError


def test_nothing_given_means_the_defaults():
    assert config.load({}) == Config()


def test_sections_with_a_target_keep_its_arguments_apart():
    loaded = config.load(
        {
            "data": {"_target_": "my.load", "batch_size": 8, "fraction": 0.5},
            "callbacks": {"stop": {"_target_": "my.Stop", "patience": 3}, "off": None},
        }
    )
    assert loaded.data.target == "my.load"
    assert loaded.data.batch_size == 8
    assert loaded.data.arguments == {"fraction": 0.5}
    assert loaded.callbacks == {"stop": TargetConfig(target="my.Stop", arguments={"patience": 3})}


@pytest.mark.parametrize(
    ("content", "key", "value"),
    [
        ({"epochs": "12"}, "epochs", 12),
        ({"max_steps": 1e5}, "max_steps", 100_000),
        ({"max_steps": "9007199254740993"}, "max_steps", 2**53 + 1),
        ({"epochs": "1e2"}, "epochs", 100),
        ({"epochs": 2**63 - 1}, "epochs", 2**63 - 1),
        ({"seed": 2**32 - 1}, "seed", 2**32 - 1),
        ({"verbose": "yes"}, "verbose", True),
        ({"debug": "Off"}, "debug", False),
        ({"run": 20}, "run", "20"),
        ({"class_weight": {0: 1, "1": 2.5}}, "class_weight", {0: 1.0, 1: 2.5}),
        ({"callbacks": None}, "callbacks", {}),
        ({"metrics": None}, "metrics", []),
        ({"metrics": "accuracy"}, "metrics", ["accuracy"]),
        ({"metrics": {"_target_": "my.M"}}, "metrics", [{"_target_": "my.M"}]),
        ({"metrics": {"out": ["mse"]}}, "metrics", {"out": ["mse"]}),
        ({"optimizer": None}, "optimizer", None),
    ],
)
def test_values_are_read_as_users_write_them(content, key, value):
    assert getattr(config.load(content), key) == value


@pytest.mark.parametrize(
    ("content", "named", "shown"),
    [
        ({"epochz": 3}, "epochz", "Did you mean epochs?"),
        ({"orchestra": "auto"}, "orchestra", "--cfg job"),
        ({"strategy": {"nam": "ps"}}, "strategy.nam", "strategy.name"),
        ({"strategy": "ps"}, "strategy must be a mapping", "'ps'"),
        ({"epochs": "many"}, "epochs must be a whole number", "'many'"),
        ({"epochs": 1.5}, "epochs must be a whole number", "1.5"),
        ({"epochs": True}, "epochs must be a whole number", "True"),
        ({"epochs": None}, "epochs must be a whole number", "None"),
        ({"max_steps": float("inf")}, "max_steps", "inf"),
        ({"verbose": 1}, "verbose must be true or false", "1"),
        ({"run": True}, "run must be a text", "without quotes"),
        ({"callbacks": ["x"]}, "callbacks", "['x']"),
        ({"callbacks": {"stop": "x"}}, "callbacks.stop", "'x'"),
        ({"callbacks": {"stop": {"patience": 1}}}, "callbacks.stop._target_", "missing"),
        ({"class_weight": {"cat": 1.0}}, "class_weight", "'cat'"),
        ({"class_weight": {0: "heavy"}}, "class_weight.0", "'heavy'"),
        ({"class_weight": {-1: 1.0}}, "class_weight", "-1"),
        ({"class_weight": {0: -1.0}}, "class_weight", "-1.0"),
        ({"metrics": 3}, "metrics must be a list", "3"),
        ({"command": "fit"}, "command", "fit"),
        ({"epochs": 0}, "epochs must be at least 1", "0"),
        ({"data": {"batch_size": 0}}, "data.batch_size must be at least 1", "0"),
        ({"seed": -1}, "seed", "-1"),
        ({"seed": 2**32}, "seed must be at most 4294967295", "4294967296"),
        (
            {"seed": 2**32 - 1, "tuner": {"name": "random"}},
            "seed must be at most 4294967295 less tuner.executions_per_trial",
            "seed=4294967295, tuner.executions_per_trial=1",
        ),
        ({"epochs": "1e300"}, "epochs must be a whole number of at most 64 bits", "'1e300'"),
        ({"class_weight": {10**20: 1.0}}, "class_weight", "100000000000000000000"),
        ({"class_weight": {0: 10**400}}, "class_weight.0 must be a number", "1000"),
        ({"strategy": {"devices": 2000}}, "strategy.devices must be at most 1024", "2000"),
        (
            {"cluster": {"workers": 100_000}},
            "cluster.workers must be at most 1000: each of them is a process on this machine",
            "100000",
        ),
        ({"steps_per_execution": 0}, "steps_per_execution", "0"),
        ({"cluster": {"start_timeout_s": 0}}, "cluster.start_timeout_s", "0"),
        ({"cluster": {"start_timeout_s": float("nan")}}, "cluster.start_timeout_s", "nan"),
        ({"cluster": {"heartbeat_timeout_s": float("inf")}}, "cluster.heartbeat_timeout_s", "inf"),
        ({"cluster": {"stop_grace_s": 1e9}}, "at most 1000000", "1000000000.0"),
        ({"strategy": {"name": "tpu"}}, "strategy.name", "tpu"),
        ({"strategy": {"collective": "mpi"}}, "strategy.collective", "mpi"),
        ({"strategy": {"update": "sync"}}, "strategy.update", "no strategy"),
        ({"strategy": {"name": "mirrored", "update": "async"}}, "strategy.update", "not available"),
        ({"strategy": {"replicas_to_aggregate": 2}}, "replicas_to_aggregate", "no strategy"),
        (
            {"strategy": {"name": "ps", "total_replicas": 2}},
            "total_replicas",
            "strategy.update=sync",
        ),
        (
            {"strategy": {"name": "ps", "update": "sync", "max_staleness": 1}},
            "strategy.max_staleness=1",
            "strategy.update=async",
        ),
        (
            {
                "strategy": {
                    "name": "ps",
                    "update": "sync",
                    "replicas_to_aggregate": 3,
                    "total_replicas": 2,
                }
            },
            "strategy.replicas_to_aggregate=3",
            "more shares than replicas",
        ),
        ({"strategy": {"name": "ps", "devices": 2}}, "strategy.devices", "2"),
        ({"command": "evaluate"}, "command=evaluate", "run=None"),
        ({"command": "predict", "run": "r"}, "data.path", "None"),
    ],
)
def test_a_fault_is_named_by_its_key_and_value(content, named, shown):
    with pytest.raises(ConfigError) as caught:
        config.load(content)
    assert named in str(caught.value)
    assert shown in str(caught.value)


WHOLE_NUMBERS = [
    (section, name)
    for section, schema in [("", Config), *typing.get_type_hints(Config).items()]
    if dataclasses.is_dataclass(schema)
    for name, kind in typing.get_type_hints(schema).items()
    if kind is int or int in typing.get_args(kind)
    if typing.get_origin(kind) is not dict
]


@pytest.mark.parametrize(("section", "name"), WHOLE_NUMBERS)
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 1e300, "99999999999999999999"])
def test_no_key_takes_a_number_that_tensorflow_cannot_hold(section, name, value):
    content = {name: value}
    with pytest.raises(ConfigError) as caught:
        config.load({section: content} if section else content)
    key = f"{section}.{name}" if section else name
    assert str(caught.value).startswith(f"{key} must be a whole number of at most 64 bits.")
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"epochs": -(10**5000)}, "epochs"),
        ({"data": {"foo": 10**5000}}, "data.foo"),
        ({"checkpoint": {"monitor": [10**5000]}}, "checkpoint.monitor"),
        ({"class_weight": {10**5000: 1.0}}, "A key of class_weight"),
    ],
    ids=["integer", "argument", "list", "key"],
)
def test_a_whole_number_that_python_does_not_write_out_is_refused(content, key):
    with pytest.raises(ConfigError) as caught:
        config.load(content)
    assert str(caught.value) == (
        f"{key} must be a whole number of at most 64 bits. Received: one of 16610 bits."
    )
