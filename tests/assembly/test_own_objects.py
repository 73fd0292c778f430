"""A model file names classes of the user's own: they come from the modules that the run names."""

import importlib
import sys

import keras
import numpy as np
import pytest

from kdist.errors import ConfigError
from kdist.training.saving import load_model, start_from

MODULE = """
import keras

@keras.saving.register_keras_serializable("shop")
class Scale(keras.layers.Layer):
    def call(self, x):
        return 2 * x

class Shift(keras.layers.Layer):
    def call(self, x):
        return x + 1

class Whole(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.last = keras.layers.Dense(2)

    def call(self, x):
        return self.last(x)

def build():
    return keras.Sequential([keras.Input((3,)), Scale(), Shift(), keras.layers.Dense(2)])

def build_whole():
    model = Whole()
    model(keras.ops.ones((1, 3)))
    return model
"""


@pytest.fixture(params=["build", "build_whole"])
def run(request, tmp_path, monkeypatch):
    """Return a run folder and its model, whose module nobody has imported any more."""
    name = "own_shop"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    model = getattr(importlib.import_module(name), request.param)()
    model.save(folder / "model.keras")
    _forget(name)
    yield folder, model, f"{name}.{request.param}"
    _forget(name)


def _forget(name):
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    for key in [k for k in keras.saving.get_custom_objects() if k.startswith("shop>")]:
        del keras.saving.get_custom_objects()[key]


def _same(model, other):
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    x = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(model(x), other(x))


def test_the_configuration_of_the_run_names_the_module(run):
    folder, model, target = run
    (folder / "config.yaml").write_text(f"model: {{_target_: {target}}}\n", encoding="utf-8")
    _same(load_model(folder), model)
    _same(load_model(folder / "model.keras"), model)


def test_a_target_that_is_typed_names_it_too(run):
    folder, model, target = run
    _same(load_model(folder, targets={"model._target_": target}), model)


def test_what_no_module_defines_is_named(run):
    """No module is imported because a file that may come from anywhere names it."""
    folder, _, target = run
    message = r"class \w+ \(of module own_shop\).*Received: no target.*model\._target_="
    with pytest.raises(ConfigError, match=message):
        load_model(folder)
    assert target.partition(".")[0] not in sys.modules


def test_a_model_starts_from_the_weights_of_one_with_classes_of_its_own(run):
    folder, model, target = run
    (folder / "config.yaml").write_text(f"model: {{_target_: {target}}}\n", encoding="utf-8")
    module, _, function = target.partition(".")
    other = getattr(importlib.import_module(module), function)()
    start_from(other, folder)
    _same(other, model)
