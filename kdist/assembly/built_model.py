"""A model that has been built on the first rows of its data, and what is known of it then."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from kdist.assembly.fixed_batches import rows_to_build_on, takes_any_rows
from kdist.assembly.label_rules import label_rules
from kdist.distribute.buckets.valueless_tables import release
from kdist.distribute.data import BatchSource
from kdist.distribute.model.probe import probe_training_step
from kdist.distribute.model.step_types import none_if_empty
from kdist.distribute.model.structure import ModelStructure, analyse, build_on_batch


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A built model with the rows that it was built on.

    Attributes:
        structure: The probed structure.
        x: Inputs of a few rows, numpy nests as the data gives them.
        y: Their labels.
        sample_weight: Their weights, or `None`.
        y_pred: The model's outputs for them.
        takes_any_rows: Whether it takes other numbers of rows, too.
    """

    structure: ModelStructure
    x: Any
    y: Any
    sample_weight: Any
    y_pred: Any
    takes_any_rows: bool

    @property
    def model(self) -> keras.Model:
        """Return the model itself."""
        return self.structure.model


def build_on_data(
    model: keras.Model,
    source: BatchSource,
    *,
    after_build: Callable[[keras.Model], None],
    carries_seeds: bool,
) -> BuiltModel:
    """Build a compiled model with its losses and metrics, and probe what a training step does.

    Args:
        model: A compiled model, whose steps are Keras' own.
        source: The training data.
        after_build: Called with the built model, before anybody takes its values.
        carries_seeds: Whether steps hand on the states of random generators.

    Raises:
        ConfigError: If model and data do not fit.
    """
    x, y, sample_weight = source.first_batch(rows_to_build_on(model))
    weights = none_if_empty(sample_weight)
    y_pred = build_on_batch(
        model,
        x,
        y,
        weights,
        explain=lambda y_pred: source.expect_labels(label_rules(model, y_pred)),
    )
    any_rows = takes_any_rows(model, x)
    release(model)
    after_build(model)
    structure = analyse(model, y_pred, carries_seeds=carries_seeds)
    probe_training_step(structure, source.element_spec)
    return BuiltModel(
        structure=structure,
        x=x,
        y=y,
        sample_weight=weights,
        y_pred=y_pred,
        takes_any_rows=any_rows,
    )
