"""Which variables a checkpoint knows by position, and which of them only servers hold."""

from collections.abc import Sequence
from typing import Any

import keras

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.layout import Bucket
from kdist.distribute.model.structure import unique
from kdist.distribute.store.optimizer import StoreOptimizer, updating_optimizers


def own_variables(model: keras.Model) -> list[keras.Variable]:
    """Return a built model's variables without those of its metrics, in the model's order."""
    metrics = [*model.metrics, keras_adapter.loss_tracker(model)]
    of_metrics = {id(variable) for metric in metrics for variable in metric.variables}
    return [v for v in unique(model.variables) if id(v) not in of_metrics]


def kept_on_servers(trainable: Sequence[keras.Variable]) -> frozenset[int]:
    """Return the positions of tables that the model has no value of."""
    return frozenset(
        index for index, each in enumerate(trainable) if not keras_adapter.has_value(each)
    )


def scalars(clone: StoreOptimizer) -> list[keras.Variable]:
    """Return an optimizer's variables that are no slots, those of inner optimizers included."""
    slots = {id(slot.variable) for slot in clone.slots}
    every = [*clone.optimizer.variables]
    for each in updating_optimizers(clone.optimizer):
        every += each.variables
    return [variable for variable in unique(every) if id(variable) not in slots]


def is_of_table(bucket: Bucket, variable: Any, kept: frozenset[int]) -> bool:
    """Return whether a bucket's variable, or a slot of it, has rows of a table of `kept`."""
    is_kept = bucket.members[0].variable_index in kept
    return is_kept and tuple(variable.shape) == tuple(bucket.shape)
