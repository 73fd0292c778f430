"""Data: global batches by index, and each worker's block of them."""

from kdist.distribute.data.array_source import ArraySource
from kdist.distribute.data.checks import check_enough_examples, num_steps
from kdist.distribute.data.labels import LabelRule, check_labels
from kdist.distribute.data.make import make_source
from kdist.distribute.data.source import BatchSource, DataSettings

__all__ = [
    "ArraySource",
    "BatchSource",
    "DataSettings",
    "LabelRule",
    "check_enough_examples",
    "check_labels",
    "make_source",
    "num_steps",
]
