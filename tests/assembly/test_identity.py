"""What a run that goes on must have in common with what was begun."""

import functools

import keras
import pytest

from kdist.assembly.identity import _loss_facts, refuse_other_run
from kdist.errors import ConfigError


def facts(loss, settings=None):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    return {"settings": settings or {"seed": 0}, "compiled": _loss_facts(model)}


def own_loss(y_true, y_pred):
    return keras.losses.mean_squared_error(y_true, y_pred)


def smoothed(label_smoothing):
    return keras.losses.CategoricalCrossentropy(label_smoothing=label_smoothing)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ("mse", "mae", "loss was mse, is mae"),
        (own_loss, "mse", "loss was own_loss, is mse"),
        ({"a": "mse"}, {"a": "mae"}, r"loss\.a was mse, is mae"),
        (smoothed(0.5), smoothed(0.0), r"loss\.label_smoothing was 0\.5, is 0\.0"),
    ],
    ids=["name", "function", "by output", "settings"],
)
def test_another_loss_is_refused_where_config_yaml_does_not_hold_it(before, now, told):
    with pytest.raises(ConfigError, match=f"was another one: {told}"):
        refuse_other_run(facts(before), facts(now), "here")


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: smoothed(0.5),
        lambda: lambda y_true, y_pred: own_loss(y_true, y_pred),
        lambda: functools.partial(own_loss),
        lambda: [keras.losses.MeanSquaredError(), "mae"],
    ],
    ids=["none", "object", "lambda", "partial", "list"],
)
def test_the_same_loss_made_anew_is_the_same(make):
    refuse_other_run(facts(make()), facts(make()), "here")


def test_a_loss_in_the_settings_is_told_once():
    with pytest.raises(ConfigError, match=r"one: loss was mse, is mae\. Received"):
        refuse_other_run(facts("mse", {"loss": "mse"}), facts("mae", {"loss": "mae"}), "here")


def test_a_checkpoint_without_the_entry_goes_on():
    before = facts("mse")
    del before["compiled"]
    refuse_other_run(before, facts("mae"), "here")
