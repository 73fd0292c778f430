"""Finds the hyperparameters of a hypermodel that only some values of others bring.

Keras Tuner finds those that stand in conditional scopes before it begins, and others once a trial
has met them. Here all are found before the first trial that one value brings: in a loop over the
number of layers, or behind a Python `if`.
"""

import contextlib
from collections.abc import Collection
from typing import Any

import keras_tuner

MAX_BUILDS = 100
_MAX_VALUES = 10


def explore(oracle: Any, hypermodel: keras_tuner.HyperModel, known: Collection[str]) -> None:
    """Let an oracle search all hyperparameters that some value of another one brings.

    Args:
        oracle: Knows those that the hypermodel's defaults and conditional scopes bring.
        hypermodel: Built for each value that decides, `MAX_BUILDS` times at most; a build that
            fails is the trial's to tell.
        known: Names that are not the hypermodel's.
    """
    tried: set[tuple[str, Any]] = set()
    for _ in range(MAX_BUILDS):
        entry = _next_value(oracle.get_space(), tried, known)
        if entry is None:
            return
        hyperparameter, value = entry
        tried.add((hyperparameter.name, value))
        space = oracle.get_space()
        for condition in hyperparameter.conditions:
            space.values[condition.name] = condition.values[0]
        space.values[hyperparameter.name] = value
        _complete(space)
        with contextlib.suppress(Exception):
            hypermodel.build(space)
            oracle.update_space(space)


def _complete(space: Any) -> None:
    """Give what is active its default, and drop the rest: Keras Tuner would draw values at random.

    What is found first depends on them, and a search that goes on has to find it in this order.
    """
    for each in space.space:
        if space.is_active(each):
            space.values.setdefault(each.name, each.default)
        else:
            space.values.pop(each.name, None)


def _next_value(
    space: Any, tried: Collection[tuple[str, Any]], known: Collection[str]
) -> tuple[Any, Any] | None:
    for each in space.space:
        if each.name in known:
            continue
        for value in deciding_values(each):
            if (each.name, value) not in tried:
                return each, value
    return None


def deciding_values(hyperparameter: Any) -> list[Any]:
    """Return the values on which it may depend what else there is: all of a choice, or the ends."""
    if hasattr(hyperparameter, "min_value"):
        values = [hyperparameter.max_value, hyperparameter.min_value]
    else:
        values = list(hyperparameter.values)
    if len(values) > _MAX_VALUES:
        values = [values[-1], values[0]]
    return [value for value in values if value != hyperparameter.default]
