"""With one worker between-graph training is exactly what plain Keras `fit` does on one device."""

import keras
import numpy as np
import pytest

from tests.engine.harness import assert_same, fit, labelled_rows
from tests.ps import test_equals_keras as in_graph
from tests.ps.test_equals_keras import OPTIMIZERS, dense

QUICK = ("nesterov", "adam_global_clipnorm")

test_batch_normalization_and_weights = pytest.mark.slow(
    in_graph.test_batch_normalization_and_weights
)
test_an_optimizer_whose_slots_begin_as_copies_of_the_weights = (
    in_graph.test_an_optimizer_whose_slots_begin_as_copies_of_the_weights
)
test_ema_at_the_end = pytest.mark.slow(in_graph.test_ema_at_the_end)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in OPTIMIZERS],
)
def test_optimizers(cluster, name):
    build = dense(OPTIMIZERS[name], l2=0.01)
    data = {"train": labelled_rows()}
    run = cluster.train(build, data, steps_per_execution=4)
    assert_same(run, fit(build, data))
    assert run.loop.store.num_updates == (10 if "accumulation" not in name else 3)


@pytest.mark.slow
def test_variables_in_pieces(cluster):
    """Kernels of several rows lie on both servers."""
    build = dense(OPTIMIZERS["adam_global_clipnorm"])
    data = {"train": labelled_rows()}
    run = cluster.train(build, data, strategy={"partition_bytes": 50})
    assert any(bucket.members[0].rows is not None for bucket in run.engine.layout.buckets)
    assert_same(run, fit(build, data))


def test_recurrent_model_with_normalization(cluster):
    """One worker trains an LSTM behind batch normalization exactly; XLA compiles it as well."""

    def build():
        model = keras.Sequential(
            [
                keras.Input((5, 3)),
                keras.layers.BatchNormalization(momentum=0.8),
                keras.layers.LSTM(4),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.02), loss="mse")
        return model

    x = np.random.default_rng(3).normal(size=(40, 5, 3)).astype("float32")
    data = {"train": (x, x.sum((1, 2))[:, None])}
    assert_same(cluster.train(build, data, steps_per_execution=5), fit(build, data))


@pytest.mark.slow
def test_jit(cluster):
    build = dense(OPTIMIZERS["sgd"])
    data = {"train": labelled_rows()}
    assert_same(cluster.train(build, data, jit_compile=True), fit(build, data))


class Warmup(keras.layers.Layer):
    """Compares tensors with ==, which in a graph would ask whether they are one object."""

    def call(self, inputs):
        is_first = keras.ops.sum(keras.ops.abs(inputs)) * 0.0 == 0.0
        return keras.ops.cond(is_first, lambda: inputs * 2.0, lambda: inputs)


def test_comparisons_of_tensors(cluster):
    def build():
        model = keras.Sequential([keras.Input((6,)), Warmup(), keras.layers.Dense(3, "softmax")])
        model.compile("sgd", loss="sparse_categorical_crossentropy")
        return model

    data = {"train": labelled_rows()}
    assert_same(cluster.train(build, data), fit(build, data))
