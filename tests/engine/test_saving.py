"""`model.keras` is what plain Keras would have saved, and validation what plain Keras evaluates."""

import keras
import numpy as np
import pytest

from kdist.errors import ConfigError
from kdist.training.saving import save_model

from .cases import (
    CASES,
    HEADS_X,
    HEADS_Y,
    ROWS,
    L,
    X,
    Y,
    adam,
    binary,
    by_path,
    dense,
    half_precision,
    heads,
    sgd,
)
from .harness import assert_same, fit, labelled_rows, prepare, train
from .runs import run


def saved(outcome, path):
    """Save as a run does; return the file as plain Keras loads it."""
    save_model(outcome.model, outcome.engine.loop.store, outcome.bridge.view, path)
    return keras.saving.load_model(path)


def optimizer_state(optimizer):
    store: dict[str, np.ndarray] = {}
    optimizer.save_own_variables(store)
    return store


@pytest.mark.parametrize(
    ("name", "build", "replicas"),
    [
        ("adam", dense(adam), 1),
        ("momentum_average", dense(lambda: sgd(use_ema=True, ema_momentum=0.8)), 2),
        ("accumulation", dense(lambda: adam(gradient_accumulation_steps=3)), 2),
        ("embedding", CASES["masked_steps"].build, 2),
        ("two_optimizers", dense(by_path), 2),
        ("mixed_float16", half_precision, 2),
    ],
)
def test_file_continues_like_uninterrupted_keras(name, build, replicas, tmp_path):
    data = CASES["masked_steps"].data if name == "embedding" else ROWS
    tolerance = 2e-3 if name == "mixed_float16" else 1e-5
    reference = fit(build, data)
    outcome = train(build, data, replicas=replicas)
    loaded = saved(outcome, tmp_path / "model.keras")

    expected = optimizer_state(reference.model.optimizer)
    state = optimizer_state(loaded.optimizer)
    assert sorted(state) == sorted(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(state[key], value, atol=tolerance, err_msg=key)

    x, y = data["train"]
    for model in (reference.model, loaded):
        model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    for a, b in zip(reference.model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(b, a, atol=tolerance)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_validation_of_the_last_epoch_equals_evaluate_of_the_file(replicas, tmp_path):
    cases = {
        1: (heads(), {"train": (HEADS_X, HEADS_Y), "validation": (HEADS_X, HEADS_Y)}),
        2: (CASES["masked_steps"].build, CASES["masked_steps"].data),
        3: (binary, CASES["metrics"].data),
    }
    build, data = cases[replicas]
    outcome = train(build, data, replicas=replicas, epochs=1)
    loaded = saved(outcome, tmp_path / "model.keras")
    evaluated = loaded.evaluate(*data["validation"], batch_size=8, verbose=0, return_dict=True)
    validated = {
        key.removeprefix("val_"): values[-1]
        for key, values in outcome.history.items()
        if key.startswith("val_")
    }
    assert sorted(validated) == sorted(evaluated)
    for key, value in evaluated.items():
        assert validated[key] == pytest.approx(float(np.ravel(value)[0]), abs=1e-5), key


def test_validation_weighs_rows_not_batches_with_weights_and_own_batch_size():
    weights = np.linspace(0.5, 2, 10).astype("float32")
    data = {"train": (X, Y), "validation": (X[:10], Y[:10], weights)}
    build = dense(sgd, compiled={"weighted_metrics": ["accuracy"]})
    reference = fit(build, data, epochs=1)
    outcome = train(build, data, replicas=3, epochs=1)
    assert_same(outcome, reference)


def test_final_metrics_are_those_of_averaged_weights():
    build = dense(lambda: adam(use_ema=True, ema_momentum=0.8))
    outcome = train(build, ROWS, replicas=2)
    evaluated = outcome.model.evaluate(*ROWS["validation"], verbose=0, return_dict=True)
    final = outcome.trainer.state.final_metrics
    assert final["val_loss"] == pytest.approx(evaluated["loss"], abs=1e-5)
    assert final["val_loss"] != pytest.approx(outcome.history["val_loss"][-1], abs=1e-6)


def test_large_variables_are_not_copied_and_still_saved(tmp_path):
    def build():
        model = keras.Sequential([keras.Input((6,)), L.Dense(30000, activation="tanh"), L.Dense(3)])
        model.compile(sgd(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    reference = fit(build, {"train": (X, Y)}, epochs=1)
    outcome = train(build, {"train": (X, Y)}, replicas=2, epochs=1)
    assert [b.is_flat for b in outcome.engine.layout.buckets] == [False, True, False]
    assert_same(outcome, reference)
    loaded = saved(outcome, tmp_path / "model.keras")
    for a, b in zip(outcome.weights, loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("names", "num_warnings"), [(["bias"], 1), ([], 0), (["nothing"], 0)])
def test_what_the_file_forgets_of_weight_decay_is_said(names, num_warnings):
    def build():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, name="last")])
        optimizer = keras.optimizers.AdamW(0.1)
        optimizer.exclude_from_weight_decay(var_names=names)
        model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(True))
        return model

    warnings = prepare(build, {"train": labelled_rows()}).engine.warnings
    assert len(warnings) == num_warnings
    assert all("last/bias)" in warning for warning in warnings)


class Scaled(L.Layer):
    """Without a `get_config`, Keras cannot write its argument down."""

    def __init__(self, scale, **options):
        super().__init__(**options)
        self.scale = scale

    def call(self, inputs):
        return inputs * self.scale()


def test_a_run_whose_model_cannot_be_saved_is_refused_before_it_has_a_folder(tmp_path):
    def build():
        model = keras.Sequential([keras.Input((6,)), Scaled(float), L.Dense(3)])
        model.compile(adam(), loss="sparse_categorical_crossentropy")
        return model

    with pytest.raises(ConfigError, match=r"cannot save the model.*Scaled"):
        run(tmp_path / "run", build, ROWS)
    assert not (tmp_path / "run").exists()
