"""A model's own `train_step` runs as it is; on several replicas only with leave, and it is said."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.errors import ConfigError
from kdist.training.saving import save_model

from .cases import LOGITS, ROWS, L, adam
from .harness import assert_same, fit, prepare, train


@keras.saving.register_keras_serializable("test")
class Doubled(keras.Model):
    """Doubles its gradients, and logs a metric of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first = L.Dense(8, activation="relu")
        self.drop = L.Dropout(0.2)
        self.last = L.Dense(3)
        self.norm = keras.metrics.Mean(name="norm")

    def call(self, x, training=False):
        return self.last(self.drop(self.first(x), training=training))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        gradients = [2 * g for g in tape.gradient(loss, self.trainable_variables)]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.norm.update_state(tf.linalg.global_norm(gradients))
        return {"norm": self.norm.result()}


@keras.saving.register_keras_serializable("test")
class OwnTest(Doubled):
    def test_step(self, data):
        x, y = data
        return {"half_loss": self.compute_loss(x=x, y=y, y_pred=self(x)) / 2}


def build(model_class=Doubled, optimizer=adam):
    def compiled():
        model = model_class()
        model.compile(optimizer(), loss=LOGITS)
        return model

    return compiled


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_one_replica_equals_plain_keras(steps_per_execution):
    reference = fit(build(), ROWS)
    outcome = train(build(), ROWS, steps_per_execution=steps_per_execution)
    assert_same(outcome, reference)
    assert outcome.trainer.state.examples_seen == 66


def test_an_own_test_step_is_what_validates():
    reference = fit(build(OwnTest), ROWS, batch_size=11)
    outcome = train(build(OwnTest), ROWS, batch_size=11)
    assert "val_half_loss" in outcome.history
    assert_same(outcome, reference)


def test_callbacks_and_files_work_as_with_any_model(tmp_path):
    def stopping():
        return [
            keras.callbacks.EarlyStopping(
                "val_loss", patience=0, min_delta=9.0, restore_best_weights=True
            )
        ]

    averaged = build(optimizer=lambda: adam(use_ema=True, ema_momentum=0.7))
    reference = fit(averaged, ROWS, epochs=3, callbacks=stopping())
    outcome = train(averaged, ROWS, epochs=3, callbacks=stopping())
    assert_same(outcome, reference)
    path = tmp_path / "model.keras"
    save_model(outcome.model, outcome.engine.loop.store, outcome.bridge.view, path)
    loaded = keras.saving.load_model(path)
    states = []
    for model in (reference.model, loaded):
        states.append({})
        model.optimizer.save_own_variables(states[-1])
    for key, value in states[0].items():
        np.testing.assert_allclose(states[1][key], value, atol=1e-5)


def test_several_replicas_run_it_with_leave_and_the_panel_says_what_is_lost():
    outcome = train(
        build(), ROWS, replicas=2, batch_size=8, strategy={"allow_custom_train_step": True}
    )
    assert "may be summed instead of averaged" in outcome.engine.notes[0]
    assert np.isfinite(outcome.history["norm"]).all()
    assert outcome.trainer.state.examples_seen == 66


@keras.saving.register_keras_serializable("test")
class AsKeras(Doubled):
    def train_step(self, data):
        return keras.Model.train_step(self, data)


@pytest.mark.parametrize("metric", ["accuracy", "sparse_top_k_categorical_accuracy"])
def test_several_replicas_have_metrics_that_are_made_with_the_first_step(metric):
    def compiled():
        model = AsKeras()
        model.compile("sgd", loss=LOGITS, metrics=[metric])
        return model

    outcome = train(
        compiled, ROWS, replicas=2, batch_size=8, strategy={"allow_custom_train_step": True}
    )
    assert all(0 < value <= 1 for value in outcome.history[metric])


@keras.saving.register_keras_serializable("test")
class Generator(keras.Model):
    """Is called with two latent numbers; trains on rows of six."""

    def __init__(self, width=6, **options):
        super().__init__(**options)
        self.made = keras.Sequential([keras.Input((2,)), L.Dense(6)])
        self.judge = keras.Sequential(
            [keras.Input((width,)), L.Dense(1)] if width else [L.Dense(1)]
        )
        self.seed = keras.random.SeedGenerator(1)
        self.score = keras.metrics.Mean(name="score")

    def call(self, latent):
        return self.made(latent + keras.random.normal(keras.ops.shape(latent), seed=self.seed))

    def train_step(self, data):
        x, _ = data
        latent = keras.random.normal((keras.ops.shape(x)[0], 2), seed=self.seed)
        with tf.GradientTape() as tape:
            score = keras.ops.mean((self.judge(x) - self.judge(self.made(latent))) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(score, variables), variables)
        self.score.update_state(score)
        return {"score": self.score.result()}


def test_a_step_that_calls_parts_needs_no_call_that_takes_the_data():
    data = {"train": ROWS["train"]}
    outcome = train(build(Generator), data)
    assert_same(outcome, fit(build(Generator), data))


@pytest.mark.parametrize(
    ("model", "data"),
    [(Generator, ROWS), (lambda: Generator(width=0), {"train": ROWS["train"]})],
    ids=["validation_calls_the_whole", "a_part_is_not_built"],
)
def test_a_call_that_does_not_take_the_data_is_told_at_once_where_it_is_needed(model, data):
    with pytest.raises(ValueError, match="expected axis -1"):
        prepare(build(model), data)


class Uncalled(Generator):
    call = keras.Model.call


def test_a_model_without_a_call_is_refused_where_validation_needs_one():
    with pytest.raises(ConfigError, match=r"Validation calls the whole model.*`call\(\)` method"):
        prepare(build(Uncalled), ROWS)
    prepare(build(Uncalled), {"train": ROWS["train"]})
