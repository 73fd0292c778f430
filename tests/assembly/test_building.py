"""What the builder tells of what it leaves out."""

import numpy as np
import pytest
import tensorflow as tf

from kdist.assembly.building import Builder
from kdist.config.schema import Config, TargetConfig
from kdist.distribute.shares import WorkerShare

TARGET = "keras.callbacks.TerminateOnNaN"


@pytest.mark.parametrize(
    ("typed_keys", "notes"),
    [
        ((), [f"{TARGET} does not take callbacks.nan.patience: left out."]),
        (("callbacks.nan._target_",), []),  # The key is what another target left there.
    ],
)
def test_keys_that_are_left_out_are_listed_unless_the_target_was_typed(typed_keys, notes):
    section = TargetConfig(target=TARGET, arguments={"patience": 3})
    builder = Builder(Config(callbacks={"nan": section}), typed_keys)
    assert len(builder.callbacks()) == 1
    assert builder.notes == notes


def test_own_batches_of_validation_are_not_said_to_be_resumed():
    def batches(context):
        del context
        return tf.data.Dataset.from_tensors((np.zeros([2, 3]), np.zeros([2, 1])))

    builder = Builder(Config(), ())
    builder.use({"make_data": lambda: {"train": batches, "validation": batches}})
    assert builder.data(WorkerShare()).notes == (
        "data.train brings its own batches: batch size, splitting and exact mid-epoch resume are "
        "its own affair.",
        "data.validation brings its own batches: batch size is its own affair.",
    )
