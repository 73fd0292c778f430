"""A search space in Keras Tuner's words, and its values in ours."""

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import keras_tuner

from kdist.config.space import BOOL, CHOICE, FLOAT, INT, Hyperparameter


def to_keras_tuner(space: Sequence[Hyperparameter]) -> Any:
    """Return the space as Keras Tuner knows it."""
    hyperparameters = keras_tuner.HyperParameters()
    entries = {entry.key: entry for entry in space}
    for entry in space:
        with contextlib.ExitStack() as scopes:
            for parent, wanted in entry.when.items():
                values = [_raw_value(entries[parent], value) for value in wanted]
                scopes.enter_context(hyperparameters.conditional_scope(parent, values))
            _declare(hyperparameters, entry)
    return hyperparameters


def plain_value(entry: Hyperparameter, raw: Any) -> Any:
    """Return the value of a key out of what the oracle calls it."""
    if entry.type == CHOICE:
        return next(value for value in entry.values if _raw_value(entry, value) == raw)
    if entry.type == BOOL:
        return bool(raw)
    return round(float(raw)) if entry.type == INT else float(raw)


def _declare(hyperparameters: Any, entry: Hyperparameter) -> None:
    default = _raw_value(entry, entry.default)
    if entry.type == BOOL:
        hyperparameters.Boolean(entry.key, default=default)
    elif entry.type == CHOICE:
        values = [_raw_value(entry, value) for value in entry.values]
        hyperparameters.Choice(entry.key, values, default=default)
    else:
        make = hyperparameters.Float if entry.type == FLOAT else hyperparameters.Int
        make(
            entry.key, entry.min, entry.max, step=entry.step, sampling=entry.sampling,
            default=default,
        )  # fmt: skip


def _raw_value(entry: Hyperparameter, value: Any) -> Any:
    """Return what the oracle calls a value: it knows choices of one scalar type only."""
    kinds = {type(each) for each in entry.values}
    is_scalar = len(kinds) == 1 and kinds <= {str, int, float, bool}
    return value if is_scalar or entry.type != CHOICE else json.dumps(value, sort_keys=True)
