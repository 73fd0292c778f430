"""Synchronous clients: with all of M the result is that of one device on the global batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.engine.harness import assert_same, fit, labelled_rows, numpy_weights
from tests.ps.models import BATCH_SIZE, constant_gradient, numbered_rows, seen_counts
from tests.ps.test_equals_keras import OPTIMIZERS, dense

SYNC = {"update": "sync"}


@pytest.mark.parametrize(
    ("name", "workers"),
    [("adam_global_clipnorm", 3), pytest.param("nesterov", 2, marks=pytest.mark.slow)],
)
def test_all_shares_equal_one_device(cluster, name, workers):
    build = dense(OPTIMIZERS[name], l2=0.01)
    x, y = labelled_rows()
    data = {"train": (x, y), "validation": (x[:11], y[:11])}
    run = cluster.train(build, data, workers=workers, strategy=SYNC)
    assert_same(run, fit(build, data))
    assert run.loop.store.num_updates == run.state.batches_seen


@pytest.mark.slow
def test_stream_and_sample_weights(cluster):
    """Batches that every worker reads for itself; denominators are those of the global batch."""

    def build():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
        model.compile(
            keras.optimizers.SGD(0.2),
            loss=keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight"),
        )
        return model

    x, y = labelled_rows()
    weight = np.linspace(0.2, 3.0, len(x)).astype("float32")
    data = {"train": (x, y, weight)}
    run = cluster.train(build, data, workers=2, strategy=SYNC)
    assert_same(run, fit(build, data))


@pytest.mark.slow
def test_batches_that_are_read_one_by_one(cluster):
    build = dense(OPTIMIZERS["sgd"])
    x, y = labelled_rows()
    streamed = tf.data.Dataset.from_tensor_slices((x, y))
    run = cluster.train(build, {"train": streamed}, workers=2, strategy=SYNC, cache_bytes=1)
    assert_same(run, fit(build, {"train": (x, y)}))


def test_backup_workers_lose_no_row(cluster):
    """Two of three shares make an update; the rows of a dropped one are dealt again."""
    num_rows = 30 * BATCH_SIZE
    build = constant_gradient(lambda: keras.optimizers.SGD(2.0**-6), num_rows=num_rows)
    run = cluster.prepare(
        build,
        {"train": numbered_rows(num_rows)},
        workers=3,
        epochs=1,
        strategy={**SYNC, "replicas_to_aggregate": 2},
    )
    start = numpy_weights(run.model)
    run.run()
    for mine, before in zip(run.weights, start, strict=True):
        np.testing.assert_allclose(mine, before - 2.0**-6 * 30, atol=1e-6)
    assert run.loop.store.num_updates == 30
    assert (seen_counts(run.model) == 1).all()


def test_chief_stands_in_for_a_worker_that_is_gone(cluster):
    """With all of M a step waits for every share, be it that of a worker that never came."""
    build = dense(OPTIMIZERS["nesterov"])
    data = {"train": labelled_rows()}
    run = cluster.prepare(build, data, workers=3, strategy=SYNC, losses=lambda: [2])
    run.followers.pop()
    assert_same(run.run(), fit(build, data))
