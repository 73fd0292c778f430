"""The search space: what may vary, and how a fault in it is named."""

import pytest

from kdist.config.schema import Config
from kdist.config.space import DEFAULT_SPACE, read_space
from kdist.errors import ConfigError
from kdist.tuning.orders import space_of

FLOAT = {"type": "float", "min": 1e-4, "max": 1e-1, "sampling": "log"}
UNITS = {"type": "int", "min": 32, "max": 256, "step": 32}


def test_types_are_read_with_their_values():
    space = {
        "optimizer.learning_rate": FLOAT,
        "model.units": UNITS,
        "model.activation": {"type": "choice", "values": ["relu", "gelu"], "default": "gelu"},
        "data.shuffle": {"type": "bool"},
    }
    rate, units, activation, shuffle = read_space(space)
    assert (rate.key, rate.min, rate.max, rate.sampling) == (
        "optimizer.learning_rate",
        1e-4,
        1e-1,
        "log",
    )
    assert (units.min, units.step, units.default) == (32, 32, 32)
    assert activation.extremes == ("relu", "gelu")
    assert activation.default == "gelu"
    assert shuffle.extremes == (False, True)


def test_dotted_keys_may_be_nested_mappings():
    nested, flat = {"optimizer": {"learning_rate": FLOAT}}, {"optimizer.learning_rate": FLOAT}
    assert read_space(nested) == read_space(flat)


def test_a_single_bound_may_be_changed():
    changed = read_space({"model.units": UNITS, "model": {"units": {"max": 64}}})
    assert changed == read_space({"model.units": {**UNITS, "max": 64}})
    model = {"type": "choice", "values": ["mlp", "cnn"]}
    changed = read_space({"model.units": UNITS, "model": {**model, "units": {"max": 64}}})
    assert changed == read_space({"model.units": {**UNITS, "max": 64}, "model": model})


def test_numbers_may_come_as_texts():
    [rate] = read_space({"lr": {"type": "float", "min": "1e-4", "max": "0.1"}})
    assert (rate.min, rate.max) == (1e-4, 0.1)


def test_conditions_put_parents_first():
    space = read_space(
        {
            "model.filters": {"type": "choice", "values": [[8], [8, 16]], "when": {"model": "cnn"}},
            "model": {"type": "choice", "values": ["mlp", "cnn"]},
        }
    )
    assert [entry.key for entry in space] == ["model", "model.filters"]
    assert space[1].is_active({"model": "cnn"})
    assert not space[1].is_active({"model": "mlp"})
    assert not space[1].is_active({})


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"type": "real"}, "tuner.space.x.type must be one of float, int, choice, bool"),
        ({"min": 1, "max": 2}, "tuner.space.x needs a type"),
        (3, "tuner.space.x needs a type"),
        ({"type": "int", "min": 3, "max": 3}, "min must be less than"),
        ({"type": "int", "min": 1.5, "max": 3}, "tuner.space.x.min must be a whole number"),
        ({"type": "int", "min": True, "max": 3}, "tuner.space.x.min must be a whole number"),
        ({"type": "int", "min": 1, "max": 10**400}, "tuner.space.x.max must be a whole number"),
        ({"type": "float", "max": 3}, "tuner.space.x.min must be a number. Received: None"),
        ({"type": "float", "min": 0, "max": 1, "sampling": "log"}, "must be more than 0"),
        ({"type": "float", "min": 1, "max": 2, "sampling": "lag"}, "linear, log, reverse_log"),
        ({"type": "int", "min": 1, "max": 9, "step": 0}, "step must be more than 0"),
        ({"type": "int", "min": 1, "max": 9, "step": 1, "sampling": "log"}, "step (a factor)"),
        ({"type": "int", "min": 1, "max": 9, "default": 10}, "between min and max"),
        ({"type": "int", "min": 1, "max": 9, "stepp": 1}, "does not take stepp"),
        ({"type": "choice", "values": []}, "values must be a list"),
        ({"type": "choice", "values": "relu"}, "values must be a list"),
        ({"type": "choice", "values": [1, 1]}, "must differ"),
        ({"type": "choice", "values": [1], "default": 2}, "default must be one of its values"),
        ({"type": "bool", "when": {"y": 1}}, "names y, which is not in the space"),
        ({"type": "bool", "when": "y"}, "when must be a mapping"),
        ({"type": "bool", "when": {"x": True}}, "go in a circle"),
    ],
)
def test_a_fault_is_named_by_its_key(entry, said):
    with pytest.raises(ConfigError) as refused:
        read_space({"x": entry})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("parent", "wanted", "said"),
    [
        ({"type": "choice", "values": ["a", "b"]}, "c", "one of its values"),
        ({"type": "int", "min": 1, "max": 4}, 5, "1 to 4"),
        ({"type": "float", "min": 1, "max": 4}, 2, "a choice, a bool or an int"),
    ],
)
def test_a_condition_that_can_never_hold_is_refused(parent, wanted, said):
    with pytest.raises(ConfigError, match=r"tuner\.space\.y\.when\.x") as refused:
        read_space({"x": parent, "y": {"type": "bool", "when": {"x": wanted}}})
    assert said in str(refused.value)


def test_a_search_without_a_space_looks_for_the_learning_rate():
    assert space_of(Config()) == read_space(DEFAULT_SPACE)
