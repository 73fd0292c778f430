"""A model file names classes of the user's own: they come from the modules that the run names."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist import config as kdist_config
from kdist.assembly import commands
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

def twice(x):
    return 2 * x

def error(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)

class Whole(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.last = keras.layers.Dense(2)

    def call(self, x):
        return self.last(x)

def build():
    layers = [Scale(), Shift(), keras.layers.Dense(2, activation=twice)]
    return keras.Sequential([keras.Input((3,)), *layers])

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
    module = importlib.import_module(name)
    model = getattr(module, request.param)()
    model.compile("sgd", loss=module.error)
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


def _loss(model):
    return model.evaluate(np.ones((2, 3), "float32"), np.ones((2, 2), "float32"), verbose=0)


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


def test_classes_of_a_script_come_from_the_module_that_is_typed(run, monkeypatch):
    folder, model, target = run
    owner = type(model.layers[1]) if len(model.layers) > 1 else type(model)
    monkeypatch.setattr(owner, "__module__", "__main__")
    model.save(folder / "model.keras")
    _forget("own_shop")
    with pytest.raises(ConfigError, match=r"class (Shift|Whole) \(of a script or a notebook\)"):
        load_model(folder)
    _same(load_model(folder, targets={"model._target_": target}), model)


def test_a_loaded_model_is_exported(run):
    folder, model, target = run
    content = {"command": "export", "run": str(folder), "model": {"_target_": target}}
    request: Any = SimpleNamespace(config=content)
    commands.run(kdist_config.load(content), request)
    served: Any = tf.saved_model.load(str(folder / "export"))
    x = np.ones((2, 3), "float32")
    np.testing.assert_allclose(served.serve(x), model(x), rtol=1e-6)


def test_a_model_starts_from_the_weights_of_one_with_classes_of_its_own(run):
    folder, model, target = run
    (folder / "config.yaml").write_text(f"model: {{_target_: {target}}}\n", encoding="utf-8")
    module, _, function = target.partition(".")
    other = getattr(importlib.import_module(module), function)()
    start_from(other, folder)
    _same(other, model)


def test_weights_find_their_place_where_no_module_has_the_classes(run):
    """As in runs of `kdist.fit`, whose classes travel by value."""
    folder, model, target = run
    module, _, function = target.partition(".")
    other = getattr(importlib.import_module(module), function)()
    _forget(module)
    start_from(other, folder)
    _same(other, model)


def test_a_hypermodel_names_it_and_the_loss_comes_back(run):
    folder, model, target = run
    search = f"tuner: {{hypermodel: {{_target_: {target}}}}}\n"
    (folder / "config.yaml").write_text(search, encoding="utf-8")
    loaded = load_model(folder, is_compiled=True)
    assert _loss(loaded) == _loss(model)


def test_a_target_that_is_gone_is_told_with_all_that_is_missing(run):
    folder, _, _ = run
    targets = {"model._target_": "gone.build", "optimizer._target_": "keras.optimizers.SGD"}
    with pytest.raises(ConfigError) as caught:
        load_model(folder, targets=targets)
    assert "Received: model._target_=gone.build cannot be imported" in str(caught.value)
    assert "optimizer" not in str(caught.value)


def test_a_class_that_cannot_be_made_is_told_with_its_cause(run, tmp_path):
    folder, _, target = run
    wants = "class {0}:\n    def __init__(self, wanted, **options):\n        pass\n\nclass Old{0}:"
    changed = MODULE
    for header in ("Shift(keras.layers.Layer)", "Whole(keras.Model)"):
        changed = changed.replace(f"class {header}:", wants.format(header))
    (tmp_path / "own_shop.py").write_text(changed, encoding="utf-8")
    message = r"own_shop\.(Shift|Whole) .*missing 1 required.*'wanted'"
    with pytest.raises(ConfigError, match=message) as caught:
        load_model(folder, targets={"model._target_": target})
    assert "config=" not in str(caught.value)
