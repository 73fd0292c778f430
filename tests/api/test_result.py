"""What `kdist.fit` returns, read from a run folder."""

import keras
import pytest

from kdist.api.result import Result
from kdist.errors import ConfigError


def _double(self, x):
    return 2 * x


def _saved(folder):
    """Save a model with a layer that no module defines; return the layer's class."""
    own = type("Double", (keras.layers.Layer,), {"call": _double, "__module__": "nowhere"})
    keras.Sequential([keras.Input((3,)), own()]).save(folder / "model.keras")
    return own


def test_the_model_is_loaded_with_what_the_caller_knows(tmp_path):
    own = _saved(tmp_path)
    result = Result(tmp_path, {}, custom_objects={"Double": own})
    assert type(result.model.layers[0]) is own


def test_classes_that_nobody_knows_are_told_in_a_sentence(tmp_path):
    _saved(tmp_path)
    with pytest.raises(
        ConfigError, match=r"class Double .*Received: .*import the module"
    ) as caught:
        _ = Result(tmp_path, {}).model
    assert caught.value.__suppress_context__
