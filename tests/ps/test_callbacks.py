"""Keras callbacks act on the servers before the next step, as they act on a model in `fit`."""

import keras
import numpy as np
import pytest

from tests.engine.harness import assert_same, fit, labelled_rows


def build():
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(3, "softmax")]
    )
    model.compile(
        keras.optimizers.SGD(0.2, momentum=0.5),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


class Shrink(keras.callbacks.Callback):
    """Reads and writes weights between batches."""

    def __init__(self):
        super().__init__()
        self.norms = []

    def on_train_batch_end(self, batch, logs=None):
        kernel = self.model.layers[0].kernel
        self.norms.append(float(np.linalg.norm(kernel.numpy())))
        kernel.assign(kernel * 0.9)
        if batch == 2:
            self.model.optimizer.learning_rate = 0.05


def data():
    x, y = labelled_rows()
    return {"train": (x, y), "validation": (x[:11], y[:11])}


def test_own_batch_hooks(cluster):
    """With one worker nothing differs from `fit`: weights, what the hook read, the history."""
    mine, theirs = Shrink(), Shrink()
    run = cluster.train(build, data(), callbacks=[mine])
    assert_same(run, fit(build, data(), callbacks=[theirs]))
    np.testing.assert_allclose(mine.norms, theirs.norms, atol=1e-5)


class Restart(keras.callbacks.Callback):
    """Lets the schedule begin again."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.iterations.assign(0)


def test_a_counter_that_is_set_reaches_the_servers(cluster):
    def scheduled():
        model = build()
        schedule = keras.optimizers.schedules.CosineDecay(0.5, 8)
        model.compile(keras.optimizers.SGD(schedule, momentum=0.5), loss=model.loss)
        return model

    run = cluster.train(scheduled, data(), callbacks=[Restart()], epochs=3)
    assert_same(run, fit(scheduled, data(), callbacks=[Restart()], epochs=3))


def test_early_stopping_and_schedule(cluster):
    """The rate of each epoch is the schedule's; the best weights come back when it stops."""

    def callbacks():
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch: [0.5, 0.1, 4.0, 8.0, 8.0][epoch]),
            keras.callbacks.EarlyStopping(
                monitor="val_loss", patience=1, restore_best_weights=True
            ),
        ]

    run = cluster.train(build, data(), callbacks=callbacks(), epochs=5)
    reference = fit(build, data(), callbacks=callbacks(), epochs=5)
    assert len(reference.history["loss"]) < 5
    assert [facts.learning_rate for facts in run.epochs] == pytest.approx(
        [0.5, 0.1, 4.0, 8.0, 8.0][: len(run.epochs)]
    )
    reference.history.pop("learning_rate", None)
    run_history = dict(run.history)
    run_history.pop("learning_rate", None)
    assert len(run_history["loss"]) == len(reference.history["loss"])
    for mine, theirs in zip(run.weights, reference.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    best = run.state.final_metrics["val_loss"]
    assert best == pytest.approx(min(run_history["val_loss"]), abs=1e-6)


@pytest.mark.parametrize("workers", [1, 3])
def test_weights_that_no_step_writes(cluster, workers):
    """A callback that anneals a non-trainable weight reaches the workers' copies of it."""

    class Scaled(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(
                shape=(), trainable=False, initializer="ones", name="scale"
            )

        def call(self, inputs):
            return inputs * self.scale

    class Anneal(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.layers[0].scale.assign(0.0 if epoch == 1 else 1.0)

    def scaled():
        model = keras.Sequential(
            [keras.Input((6,)), Scaled(), keras.layers.Dense(1, use_bias=False)]
        )
        model.compile(keras.optimizers.SGD(0.0), loss="mae")
        return model

    x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
    ones = np.ones((32, 1), "float32")
    parts = {"train": (x, ones), "validation": (x, ones)}
    run = cluster.train(scaled, parts, workers=workers, epochs=3, callbacks=[Anneal()])
    for key in ("loss", "val_loss"):
        first, annealed, last = run.history[key]
        assert annealed == pytest.approx(1.0)
        assert first == pytest.approx(last) != pytest.approx(1.0)
