"""Keras callbacks run unchanged: the numbers of plain fit, with one replica and with several."""

import csv
import warnings

import keras
import numpy as np
import pytest

from kdist.errors import ConfigError
from kdist.training.saving import save_model

from .cases import ROWS, adam, dense, sgd
from .harness import assert_same, fit, prepare, train

C = keras.callbacks


class Shrink(C.Callback):
    """A user's own: reads and writes weights and the learning rate, batch by batch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        kernel = self.model.layers[0].kernel
        self.seen.append(("end", batch, round(float(logs["loss"]), 4), float(np.sum(kernel))))
        if batch == 2:
            kernel.assign(kernel * 0.5)
            self.model.optimizer.learning_rate = 0.05

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(("epoch", epoch, sorted(logs), int(self.model.optimizer.iterations)))


def rounded(seen):
    return [tuple(round(v, 3) if isinstance(v, float) else v for v in entry) for entry in seen]


def both(build, make, *, replicas, epochs=3, **options):
    """Train with plain Keras and with kdist, each with callbacks of its own."""
    plain, mine = make(), make()
    reference = fit(build, ROWS, epochs=epochs, callbacks=plain)
    outcome = train(build, ROWS, epochs=epochs, replicas=replicas, callbacks=mine, **options)
    return reference, outcome, plain, mine


@pytest.mark.parametrize("replicas", [1, 2])
def test_own_callback_with_batch_hooks_reads_and_writes(replicas):
    reference, outcome, (plain,), (mine,) = both(
        dense(sgd), lambda: [Shrink()], replicas=replicas, epochs=2
    )
    assert_same(outcome, reference)
    assert rounded(mine.seen) == rounded(plain.seen)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [C.LearningRateScheduler(lambda epoch, rate: rate * 0.5)],
        lambda: [C.ReduceLROnPlateau(monitor="val_loss", patience=0, min_delta=1.0, cooldown=0)],
        lambda: [C.EarlyStopping(monitor="val_loss", patience=0, min_delta=9.0)],
        lambda: [
            C.EarlyStopping(
                monitor="val_loss", patience=1, min_delta=9.0, restore_best_weights=True
            )
        ],
    ],
    ids=["schedule", "plateau", "early_stop", "early_stop_restores"],
)
def test_epoch_callbacks_decide_as_under_plain_keras(make):
    for replicas in (1, 3):
        reference, outcome, _, _ = both(dense(sgd), make, replicas=replicas)
        recorded = {k: v for k, v in reference.history.items() if k != "learning_rate"}
        reference.history = recorded
        outcome.history.pop("learning_rate", None)
        assert_same(outcome, reference)
        rate = keras.ops.convert_to_numpy(reference.model.optimizer.learning_rate)
        assert outcome.bridge.view.learning_rate == pytest.approx(float(rate))


def test_best_weights_are_restored_after_averages_were_written_over_them():
    def make():
        return [C.EarlyStopping(patience=1, min_delta=9.0, restore_best_weights=True)]

    build = dense(lambda: sgd(use_ema=True, ema_momentum=0.8))
    reference, outcome, _, _ = both(build, make, replicas=2)
    assert_same(outcome, reference)
    final = outcome.trainer.state.final_metrics
    evaluated = outcome.model.evaluate(*ROWS["validation"], verbose=0, return_dict=True)
    assert final["val_loss"] == pytest.approx(evaluated["loss"], abs=1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
def test_averages_are_swapped_in_for_validation(replicas):
    reference, outcome, _, _ = both(
        dense(lambda: adam(use_ema=True, ema_momentum=0.7)),
        lambda: [C.SwapEMAWeights(swap_on_epoch=False)],
        replicas=replicas,
        epochs=2,
    )
    assert_same(outcome, reference)


def test_averages_are_swapped_in_at_the_end_of_epochs(tmp_path):
    def make():
        path = str(tmp_path / f"{len(list(tmp_path.iterdir()))}" / "e{epoch}.keras")
        (tmp_path / f"{len(list(tmp_path.iterdir()))}").mkdir()
        return [C.SwapEMAWeights(swap_on_epoch=True), C.ModelCheckpoint(path)]

    reference, outcome, _, _ = both(
        dense(lambda: sgd(use_ema=True, ema_momentum=0.7)), make, replicas=2, epochs=2
    )
    assert_same(outcome, reference)
    for name in ("e1.keras", "e2.keras"):
        plain, mine = (keras.saving.load_model(tmp_path / i / name) for i in ("0", "1"))
        for a, b in zip(plain.get_weights(), mine.get_weights(), strict=True):
            np.testing.assert_allclose(b, a, atol=1e-5)


def test_files_of_keras_callbacks_hold_the_same_numbers(tmp_path):
    folders = iter([tmp_path / "plain", tmp_path / "mine"])

    def make():
        folder = next(folders)
        folder.mkdir()
        return [
            C.CSVLogger(str(folder / "log.csv")),
            C.ModelCheckpoint(str(folder / "last.weights.h5"), save_weights_only=True),
            C.TensorBoard(str(folder / "tb"), update_freq="epoch"),
            C.TerminateOnNaN(),
        ]

    both(dense(adam), make, replicas=2, epochs=2)
    rows = [list(csv.reader((tmp_path / n / "log.csv").open())) for n in ("plain", "mine")]
    assert rows[0][0] == rows[1][0]
    np.testing.assert_allclose(
        np.array(rows[1][1:], float), np.array(rows[0][1:], float), atol=1e-5
    )
    models = [dense(adam)() for _ in range(2)]
    for model, name in zip(models, ("plain", "mine"), strict=True):
        model.load_weights(tmp_path / name / "last.weights.h5", skip_mismatch=False)
    for a, b in zip(models[0].get_weights(), models[1].get_weights(), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5)
    written = [
        sorted(p.parent.name for p in (tmp_path / n / "tb").rglob("events*"))
        for n in ("plain", "mine")
    ]
    assert written[0] == written[1] == ["train", "validation"]


def test_histograms_of_tensorboard_are_those_of_the_current_weights(tmp_path):
    seen = []
    plain = C.TensorBoard(str(tmp_path), histogram_freq=1)
    plain._log_weights = lambda epoch: seen.append(plain.model.get_weights())
    outcome = train(dense(sgd), ROWS, epochs=2, callbacks=[plain])
    for weight, expected in zip(seen[-1], outcome.weights, strict=True):
        np.testing.assert_array_equal(weight, expected)
    assert not np.array_equal(seen[0][0], seen[1][0])


def test_a_class_derived_from_one_that_only_reads_logs_may_write_weights():
    class Halves(C.CSVLogger):
        def on_epoch_end(self, epoch, logs=None):
            self.model.set_weights([w * 0.5 for w in self.model.get_weights()])

        def on_train_begin(self, logs=None):
            pass

        def on_train_end(self, logs=None):
            pass

    reference, outcome, _, _ = both(dense(sgd), lambda: [Halves("unused")], replicas=2, epochs=2)
    assert_same(outcome, reference)


@pytest.mark.parametrize("replicas", [1, 2])
def test_nan_ends_training_at_the_batch_where_it_appears(replicas):
    x = ROWS["train"][0].copy()
    x[20] = np.nan
    data = {"train": (x, ROWS["train"][1])}
    plain = fit(dense(sgd), data, epochs=3, callbacks=[C.TerminateOnNaN()])
    mine = train(dense(sgd), data, epochs=3, replicas=replicas, callbacks=[C.TerminateOnNaN()])
    assert len(plain.history["loss"]) == len(mine.history["loss"]) == 1
    assert mine.trainer.state.batches_seen == 3


def test_lambda_callback_stops_training_within_an_epoch():
    def make():
        callback = C.LambdaCallback(
            on_train_batch_end=lambda batch, logs: (
                batch == 1 and setattr(callback.model, "stop_training", True)
            )
        )
        return [callback]

    reference, outcome, _, _ = both(dense(sgd), make, replicas=2)
    assert outcome.trainer.state.batches_seen == 2
    assert_same(outcome, reference)


def test_hooks_come_in_the_order_of_plain_keras():
    class Recorder(C.Callback):
        def __init__(self):
            super().__init__()
            self.calls = []

    def recording(name):
        def hook(self, *args, logs=None):
            self.calls.append((name, *[a for a in args if isinstance(a, int)]))

        return hook

    for hook in dir(C.Callback):
        if hook.startswith("on_") and "predict" not in hook:
            setattr(Recorder, hook, recording(hook))
    plain, mine = Recorder(), Recorder()
    fit(dense(sgd), ROWS, batch_size=11, callbacks=[plain])
    train(dense(sgd), ROWS, batch_size=11, callbacks=[mine])
    assert mine.calls == plain.calls


class Restart(C.Callback):
    """Lets a schedule begin again, as warm restarts by hand do."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.iterations.assign(0)


def cosine():
    return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 8))


class Slower(C.Callback):
    """Sets the rates inside a `MultiOptimizer`, which has none of its own."""

    def on_epoch_end(self, epoch, logs=None):
        for each in self.model.optimizer.optimizers:
            each.learning_rate = 0.01


def two_optimizers():
    kernels = {".*kernel": keras.optimizers.SGD(0.1, momentum=0.5)}
    by_name = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.05), kernels)
    return keras.optimizers.MultiOptimizer(by_name)


class Writes(C.Callback):
    """Writes into the logs, as own validations do."""

    def on_epoch_end(self, epoch, logs=None):
        logs["extra"] = epoch + 0.5
        logs["val_loss"] = [3.0, 1.0, 2.0][epoch]
        logs["val_words"] = "no number"


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("optimizer", "callback"),
    [(cosine, Restart), (two_optimizers, Slower)],
    ids=["counter", "several rates"],
)
def test_what_a_callback_sets_on_the_optimizer_counts(optimizer, callback, replicas):
    reference, outcome, _, _ = both(dense(optimizer), lambda: [callback()], replicas=replicas)
    assert_same(outcome, reference)


def test_numbers_that_callbacks_write_into_the_logs_are_kept():
    reference, outcome, _, _ = both(dense(sgd), lambda: [Writes()], replicas=1)
    assert reference.history.pop("val_words") == ["no number"] * 3
    assert outcome.history["extra"] == [0.5, 1.5, 2.5]
    assert_same(outcome, reference)


class StopsInEpoch(C.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.stop_training = epoch == 1


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_stop_as_an_epoch_begins_ends_it_after_one_call(replicas):
    reference, outcome, _, _ = both(dense(sgd), lambda: [StopsInEpoch()], replicas=replicas)
    assert outcome.trainer.state.batches_seen == 6
    assert_same(outcome, reference)


class Changes(C.Callback):
    def __init__(self, hook, change):
        super().__init__()
        self._hook, self._change = hook, change
        if hook != "set_model":
            setattr(self, hook, lambda *args, logs=None: self._change(self.model))

    def set_model(self, model):
        super().set_model(model)
        if self._hook == "set_model":
            self._change(model)


def freeze(model):
    model.layers[0].trainable = False


def less_momentum(model):
    model.optimizer.momentum = 0.5


@pytest.mark.parametrize("hook", ["set_model", "on_train_begin", "on_epoch_begin"])
@pytest.mark.parametrize(
    ("change", "received"),
    [
        (freeze, r"trainable of .*kernel was True, is False"),
        (less_momentum, r"optimizer\.momentum was 0\.9, is 0\.5"),
    ],
    ids=["freeze", "momentum"],
)
def test_changes_that_come_too_late_are_refused(hook, change, received):
    """In plain Keras they count, as its step is made when the first batch comes."""
    with pytest.raises(ConfigError, match=received):
        train(dense(sgd), ROWS, callbacks=[Changes(hook, change)])


class SetsUp(C.Callback):
    """Prepares the model it is given, before any hook is called."""

    def set_model(self, model):
        super().set_model(model)
        model.optimizer.learning_rate = 0.01
        model.layers[0].kernel.assign(model.layers[0].kernel * 0.5)


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_set_model_writes_counts(replicas):
    reference, outcome, _, _ = both(dense(sgd), lambda: [SetsUp()], replicas=replicas)
    assert_same(outcome, reference)


class StopsAtOnce(C.Callback):
    def on_train_begin(self, logs=None):
        self.model.stop_training = True


def test_a_stop_before_the_first_epoch_ends_it_after_one_call():
    reference, outcome, _, _ = both(dense(sgd), lambda: [StopsAtOnce()], replicas=2)
    assert outcome.trainer.state.batches_seen == 1
    assert_same(outcome, reference)


class ReadsScale(C.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(float(self.model.optimizer.dynamic_scale))


def test_the_loss_scale_is_seen():
    def scaled():
        return keras.optimizers.LossScaleOptimizer(sgd(), 1024.0, dynamic_growth_steps=3)

    _, _, (plain,), (mine,) = both(dense(scaled), lambda: [ReadsScale()], replicas=2)
    assert mine.seen == plain.seen
    assert len(set(mine.seen)) > 1


def test_a_saved_multi_optimizer_has_the_state_of_each(tmp_path):
    """Keras warns where it loads another number of variables than it has."""
    outcome = train(dense(two_optimizers), ROWS)
    save_model(
        outcome.model, outcome.engine.loop.store, outcome.bridge.view, tmp_path / "model.keras"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    plain = fit(dense(two_optimizers), ROWS).model.optimizer
    for mine, theirs in zip(loaded.optimizer.optimizers, plain.optimizers, strict=True):
        for a, b in zip(mine.variables, theirs.variables, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5, err_msg=b.path)


def test_changes_in_a_later_epoch_are_none_of_a_run_that_goes_on():
    """There they have no effect in plain Keras, wherever the run was stopped before."""

    def freeze_in_epoch_3(epoch, logs=None):
        if epoch == 3:
            freeze(callback.model)

    callback = C.LambdaCallback(on_epoch_begin=freeze_in_epoch_3)
    prepared = prepare(dense(sgd), ROWS, callbacks=[callback])
    prepared.bridge.train_begin()
    prepared.bridge.epoch_begin(3)
    assert not prepared.model.layers[0].trainable
