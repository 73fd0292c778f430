"""What a pure step would silently train wrong is refused by name, before training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.assembly.failures import as_kdist_error
from kdist.errors import ConfigError

from .cases import LOGITS, ROWS, L, X, Y, compiled_of, sgd
from .harness import assert_same, fit, prepare, train
from .runs import Left, run


def sequential(*layers, loss=LOGITS, metrics=(), units=3, model_class=keras.Sequential):
    def build():
        made = [layer if isinstance(layer, L.Layer) else layer() for layer in layers]
        model = model_class([keras.Input((6,)), *made, L.Dense(units)])
        model.compile(sgd(), loss=loss, metrics=[m() for m in metrics])
        return model

    return build


class RawVariable(L.Layer):
    def build(self, shape):
        self.hidden = tf.Variable(tf.ones([shape[-1]]), name="hidden_scale")

    def call(self, x):
        return x * self.hidden


class NoSeed(L.Layer):
    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x))


class Unused(L.Layer):
    def build(self, shape):
        self.orphan = self.add_weight(shape=(2,), name="orphan")

    def call(self, x):
        return x


class ActivityOfTheBatch(L.Layer):
    """Adds a loss that is a sum over the rows, not their mean."""

    def call(self, x):
        self.add_loss(keras.ops.sum(keras.ops.square(x)))
        return x


class LargestError(keras.metrics.Metric):
    def __init__(self, name="largest_error", **options):
        super().__init__(name=name, **options)
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        largest = keras.ops.max(keras.ops.abs(y_pred))
        self.value.assign(keras.ops.maximum(self.value, largest))

    def result(self):
        return self.value


def dice_like(y_true, y_pred):
    """Return a loss of the whole batch: no mean over rows."""
    y_pred = keras.ops.sigmoid(y_pred[:, 0])
    y_true = keras.ops.cast(y_true, "float32")
    overlap = keras.ops.sum(y_true * y_pred)
    return 1 - 2 * overlap / (keras.ops.sum(y_true) + keras.ops.sum(y_pred))


class OwnTrainStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


class OwnTestStep(keras.Sequential):
    def test_step(self, data):
        return super().test_step(data)


class SynchronizedOwnLoss(keras.Sequential):
    def compute_loss(self, *args, **options):
        return super().compute_loss(*args, **options)


def stateful():
    model = keras.Sequential(
        [keras.Input(batch_shape=(4, 6, 1)), L.LSTM(4, stateful=True, name="memory"), L.Dense(3)]
    )
    model.compile(sgd(), loss=LOGITS)
    return model


SEQUENCES = {"train": (X[:32, :, None], Y[:32])}
DATA = {"train": (X, Y)}
BINARY = {"train": (X, (Y > 0).astype("float32"))}

REFUSED = {
    "raw variable": (sequential(RawVariable), DATA, 1, "hidden_scale.*add_weight"),
    "random without a seed": (sequential(NoSeed), DATA, 1, "SeedGenerator"),
    "stateful rnn": (stateful, SEQUENCES, 1, "memory|stateful"),
    "no gradient path": (sequential(Unused), DATA, 1, "orphan.*does not depend on it"),
    "written and trainable": (
        sequential(L.SpectralNormalization(L.Dense(4))),
        DATA,
        1,
        "also written by the forward pass",
    ),
    "loss of the whole batch": (
        sequential(loss=dice_like, units=1),
        BINARY,
        2,
        "dice_like.*halves",
    ),
    "add_loss of a sum": (sequential(ActivityOfTheBatch), DATA, 2, "add_loss"),
    "metric that is a maximum": (sequential(metrics=[LargestError]), DATA, 1, "largest_error"),
    "own train_step": (sequential(model_class=OwnTrainStep), DATA, 2, "OwnTrainStep.*train_step"),
    "own test_step": (sequential(model_class=OwnTestStep), DATA, 2, "OwnTestStep.*test_step"),
    "own loss beside synchronized layers": (
        sequential(L.BatchNormalization(synchronized=True), model_class=SynchronizedOwnLoss),
        DATA,
        2,
        "compute_loss.*synchronized",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    build, data, replicas, pattern = REFUSED[name]
    with pytest.raises(ConfigError, match=pattern):
        prepare(build, data, replicas=replicas, batch_size=4)


@pytest.mark.parametrize(
    "build",
    [sequential(loss=dice_like, units=1), sequential(ActivityOfTheBatch)],
    ids=["loss of the whole batch", "add_loss of a sum"],
)
def test_one_replica_splits_nothing_and_takes_them(build):
    assert prepare(build, BINARY, replicas=1, batch_size=4).engine is not None


def test_a_saved_model_as_a_layer_is_refused(tmp_path):
    keras.Sequential([keras.Input((6,)), L.Dense(4)]).export(tmp_path, verbose=False)
    build = sequential(lambda: L.TFSMLayer(tmp_path, call_endpoint="serve", name="theirs"))
    with pytest.raises(ConfigError, match=r"SavedModel.*build theirs of Keras layers"):
        prepare(build, DATA)


def test_synchronized_normalization_is_refused_under_jit():
    build = sequential(L.BatchNormalization(synchronized=True))
    with pytest.raises(ConfigError, match="jit_compile=true cannot compile BatchNormalization"):
        prepare(build, DATA, replicas=2, jit_compile=True)


def test_unsynchronized_normalization_is_said():
    outcome = prepare(sequential(L.BatchNormalization(name="bn")), ROWS, replicas=2)
    assert "bn" in outcome.engine.notes[0]
    assert "synchronized=True" in outcome.engine.notes[0]


def test_a_model_that_cannot_take_the_data_is_refused_with_both_shapes():
    with pytest.raises(ConfigError, match=r"cannot take the data.*x float32\(4, 5\)"):
        prepare(
            compiled_of(lambda: keras.Sequential([keras.Input((6,)), L.Dense(3)])),
            {"train": (np.zeros((9, 5), "float32"), Y[:9])},
        )


def test_labels_of_the_validation_data_are_checked_too():
    with pytest.raises(ConfigError, match=r"Received: 3 in row 5 of data\.validation \(1 of 6"):
        prepare(sequential(), {**DATA, "validation": (X[:6], np.array([0, 1, 2, 0, 1, 3]))})


def test_a_wrong_label_that_comes_later_ends_the_run_by_name(tmp_path):
    y = np.where(np.arange(len(X)) == 21, 3, Y)

    def rows(context):
        return tf.data.Dataset.from_tensor_slices((X, y)).batch(8).repeat()

    with pytest.raises(Exception, match="Received: 3 in a batch") as raised:
        run(tmp_path / "run", sequential(), {"train": rows}, steps_per_epoch=4)
    assert str(as_kdist_error(raised.value)).startswith("Labels must be class indices from 0 to 2,")
    error = Left(tmp_path / "run").result["error"]
    assert error["message"].startswith("Labels must be class indices from 0 to 2, one for each")


def rows_of_eight(*, regularizer=None):
    """Return a model whose layers rely on the number of rows that its input names."""
    x = keras.Input(batch_shape=(8, 6))
    halves = L.Flatten()(keras.ops.reshape(x, (8, 2, 3)))
    model = keras.Model(x, L.Dense(3, kernel_regularizer=regularizer)(halves), name="of_eight")
    model.compile(sgd(), loss=LOGITS, metrics=["accuracy"])
    return model


def first_rows(train, validation):
    return {"train": (X[:train], Y[:train]), "validation": (X[:validation], Y[:validation])}


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_fixed_number_of_rows_is_taken_where_every_share_has_it(replicas):
    data, batch_size = first_rows(32, 16), 8 * replicas
    free = compiled_of(lambda: keras.Sequential([keras.Input((6,)), L.Dense(3)]), sgd)
    assert_same(
        train(
            rows_of_eight,
            data,
            replicas=replicas,
            batch_size=batch_size,
            validation_batch_size=8,
        ),
        fit(free, data, batch_size=batch_size),
    )


def test_losses_of_layers_are_refused_where_parts_of_a_batch_cannot_be_compared():
    with pytest.raises(ConfigError, match=r"add_loss.*of_eight does not take"):
        prepare(
            lambda: rows_of_eight(regularizer="l2"),
            first_rows(32, 16),
            replicas=2,
            batch_size=16,
            validation_batch_size=8,
        )


@pytest.mark.parametrize(
    ("replicas", "batch_size", "data", "said"),
    [
        (1, 6, first_rows(24, 8), "of 6 rows in data.train, where 8 would.*data.batch_size=8 "),
        (1, 8, first_rows(28, 8), r"4 rows in the last batch of data.train \(28 examples\)"),
        (2, 8, first_rows(24, 8), "each of the 2 shares.*where 16 would.*batch_size=16 "),
        (1, 8, first_rows(24, 9), "1 rows in the last batch of data.validation"),
    ],
)
def test_other_numbers_of_rows_are_refused_with_those_that_fit(replicas, batch_size, data, said):
    with pytest.raises(ConfigError, match=f"of_eight takes 8 rows at a time.*{said}"):
        prepare(rows_of_eight, data, replicas=replicas, batch_size=batch_size)
