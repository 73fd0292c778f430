"""What the losses of a built model ask of labels."""

import dataclasses
from typing import Any

import keras

from kdist.distribute import keras_adapter
from kdist.distribute.data import LabelRule


def label_rules(model: keras.Model, y_pred: Any) -> list[LabelRule]:
    """Return what the compiled losses ask of labels, by the outputs on some rows."""
    rules = []
    for entry in keras_adapter.loss_entries(model):
        rule = LabelRule(
            path=entry.path,
            output_shape=(),
            loss_name=getattr(entry.loss, "name", None),
            ignore_class=getattr(entry.loss, "ignore_class", None),
        )
        output = rule.part_of(y_pred)
        if output is not None:
            rules.append(dataclasses.replace(rule, output_shape=tuple(output.shape)))
    return rules
