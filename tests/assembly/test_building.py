"""What the builder tells of what it leaves out."""

import pytest

from kdist.assembly.building import Builder
from kdist.config.schema import Config, TargetConfig

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
