"""`command=evaluate`, within this process."""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from kdist import config as kdist_config
from kdist.assembly.commands import evaluate
from kdist.errors import ConfigError


@pytest.fixture
def model():
    """Return a model of four features and three classes."""
    keras.utils.set_random_seed(0)
    built = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile("sgd", loss=loss, metrics=["accuracy"])
    return built


def evaluated(model, folder, x, y, *, fraction=0.0):
    """Evaluate on rows of a file; return what is written."""
    np.savez(folder / "rows.npz", x=x, y=y)
    data = {
        "_target_": "kdist.datasets.npz",
        "path": str(folder / "rows.npz"),
        "validation_fraction": fraction,
        "batch_size": 8,
    }
    config = kdist_config.load({"command": "evaluate", "run": str(folder), "data": data})
    evaluate(model, folder, config, SimpleNamespace(typed_keys=()))
    return json.loads((folder / "evaluation.json").read_text())


def test_equals_keras(model, tmp_path):
    x = np.random.default_rng(0).normal(size=(21, 4)).astype("float32")
    y = np.arange(21) % 3
    found = evaluated(model, tmp_path, x, y)
    wanted = model.evaluate(x, y, verbose=0, return_dict=True)
    assert found == pytest.approx({f"val_{k}": v for k, v in wanted.items()}, abs=1e-6)


@pytest.mark.parametrize(
    ("fraction", "told"),
    [
        (0.0, "Measured on all 20 examples: none are for validation."),
        (0.2, "the 4 examples for validation, held out of 20; data.validation_fraction=0 measures"),
    ],
)
def test_how_many_rows_were_measured_is_told(model, tmp_path, capsys, fraction, told):
    x, y = np.zeros((20, 4), "float32"), np.arange(20) % 3
    evaluated(model, tmp_path, x, y, fraction=fraction)
    assert told in capsys.readouterr().out


def test_labels_without_an_output_are_refused(model, tmp_path):
    x, y = np.zeros((21, 4), "float32"), np.arange(21) % 4
    with pytest.raises(ConfigError, match=r"from 0 to 2.*Received: 3 in row 3"):
        evaluated(model, tmp_path, x, y)


def test_rows_that_the_model_does_not_take_are_refused(model, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot take the data.*Received: x .*5"):
        evaluated(model, tmp_path, np.zeros((21, 5), "float32"), np.zeros(21, "int32"))
