"""The settings of `kdist.fit`."""

import numpy as np
import pytest

from kdist import config as kdist_config
from kdist.config.from_python import nested, refuse_unheard, typed_keys
from kdist.errors import ConfigError


@pytest.mark.parametrize(
    ("dotted", "content"),
    [
        ({"data.batch_size": 10, "data": {"shuffle": False}}, {"batch_size": 10, "shuffle": False}),
        ({"data": {"shuffle": False}, "data.batch_size": 10}, {"batch_size": 10, "shuffle": False}),
        ({"data.batch_size": 10, "data": {"batch_size": 20}}, {"batch_size": 20}),
        ({"data.batch_size": 10, "data": None}, {"batch_size": 10}),
    ],
    ids=["section last", "section first", "the last counts", "null"],
)
def test_a_section_as_a_mapping_adds_to_its_keys(dotted, content):
    assert nested(dotted) == {"data": content}


def test_what_was_given_stays_as_it_was():
    given = {"shuffle": False}
    nested({"data": given, "data.batch_size": 10})
    assert given == {"shuffle": False}


def test_numbers_of_numpy_become_pythons():
    content = nested({"data.batch_size": np.int32(10), "optimizer": {"betas": [np.float64(0.5)]}})
    assert content == {"data": {"batch_size": 10}, "optimizer": {"betas": [0.5]}}
    assert type(content["data"]["batch_size"]) is int
    assert type(content["optimizer"]["betas"][0]) is float


def test_a_section_that_is_no_mapping_is_named():
    expected = r"strategy must be a mapping .* Received: 'ps' beside strategy\.update\."
    with pytest.raises(ConfigError, match=expected):
        nested({"strategy": "ps", "strategy.update": "sync"})


def test_keys_that_say_something_are_typed():
    content = {"loss": "mae", "seed": None, "optimizer": {"learning_rate": 0.1}, "callbacks": {}}
    assert list(typed_keys(content)) == ["loss", "optimizer.learning_rate"]


@pytest.mark.parametrize(
    ("content", "given", "told"),
    [
        ({"model": {"units": 3}}, (), r"build_model without .* Received: model\.units .*partial"),
        ({"data": {"path": "a.npz"}}, (), r"make_data without arguments\. Received: data\.path "),
        ({"data": {"rows": 3}}, (), r"Received: data\.rows "),
        ({"loss": "mae"}, ("loss",), "the argument loss of kdist.fit, and loss in config"),
        ({"metrics": ["mae"]}, ("metrics",), "the argument metrics of kdist.fit, and metrics"),
        ({"optimizer": {"learning_rate": 0.1}}, ("optimizer",), r"and optimizer\.learning_rate in"),
        ({"optimizer": {"learning_rate": 0.1}}, (), r"optimizer\._target_ is missing\. Received: "),
    ],
)
def test_what_nobody_would_hear_is_refused(content, given, told):
    with pytest.raises(ConfigError, match=told):
        refuse_unheard(kdist_config.load(content), tuple(typed_keys(content)), given)


@pytest.mark.parametrize(
    "content",
    [
        {"model": {"_target_": "my_pkg.build"}, "data": {"shuffle": False, "batch_size": 8}},
        {"optimizer": {"_target_": "keras.optimizers.SGD", "learning_rate": 0.1}},
        {"loss": None, "metrics": None, "optimizer": None, "epochs": 3},
        {"metrics": ["mae"]},
    ],
)
def test_what_is_heard_is_not(content):
    refuse_unheard(kdist_config.load(content), tuple(typed_keys(content)), ("loss",))
