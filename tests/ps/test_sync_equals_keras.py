"""With N = M the workers of synchronous servers train what plain Keras `fit` trains on one device.

Whatever the batch sizes: last batches that do not divide, and batches with fewer rows than workers.
"""

import keras
import numpy as np
import pytest

from tests.engine.cases import CASES
from tests.engine.harness import assert_same, fit, labelled_rows
from tests.ps.test_equals_keras import dense

SYNC = {"update": "sync"}
# The whole batch is needed by synchronized normalization: refused (below).
SYNCHRONIZED = {"l2_last_batch_of_one", "fewer_rows_than_replicas_conv", "subclassed"}
QUICK = {
    *("sample_weights", "masked_steps_weighted_mean"),
    *("several_outputs_weighted", "global_clipnorm", "accumulation", "mixed_float16"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in CASES
        if name not in SYNCHRONIZED
    ],
)
def test_cases(cluster, name):
    case = CASES[name]
    run = cluster.train(
        case.build,
        case.data,
        workers=case.replicas,
        batch_size=case.batch_size,
        class_weight=case.class_weight,
        strategy=SYNC,
        **case.mirrored,
    )
    reference = fit(
        case.build, case.data, batch_size=case.batch_size, class_weight=case.class_weight
    )
    assert_same(run, reference, tolerance=case.tolerance)
    assert run.state.batches_seen == run.trainer._plan.total_steps
    assert int(run.loop.store.num_applied.numpy()) == run.state.batches_seen
    assert int(run.loop.aggregation.read().dropped) == 0


@pytest.mark.parametrize(
    ("num_rows", "workers"), [(10, 3), pytest.param(2, 3, marks=pytest.mark.slow)]
)
def test_fewer_rows_than_workers(cluster, num_rows, workers):
    """The last batch has two rows, or all of them have."""
    build = dense(lambda: keras.optimizers.SGD(0.25, momentum=0.9), l2=0.01)
    data = {"train": labelled_rows(num_rows)}
    run = cluster.train(build, data, workers=workers, strategy=SYNC)
    assert_same(run, fit(build, data))
    assert run.state.examples_seen == 2 * num_rows


def test_scaled_global_clipnorm_on_one_and_two_servers(cluster):
    def optimizer():
        return keras.optimizers.SGD(
            0.25, momentum=0.9, global_clipnorm=0.05, loss_scale_factor=64.0
        )

    data = {"train": labelled_rows()}
    reference = fit(dense(optimizer), data)
    for ps in (1, 2):
        run = cluster.train(dense(optimizer), data, workers=2, ps=ps, strategy=SYNC)
        assert_same(run, reference)


def test_data_that_the_chief_reads(cluster):
    """A stream has no rows by index: each batch is sent along, and its shares are cut from it."""
    build = dense(lambda: keras.optimizers.Adam(0.02))
    x, y = labelled_rows()
    import tensorflow as tf

    stream = tf.data.Dataset.from_tensor_slices((x, y))
    run = cluster.train(build, {"train": stream}, workers=3, strategy=SYNC, cache_bytes=1)
    assert_same(run, fit(build, {"train": (x, y)}))


def test_moving_statistics_are_averaged_by_rows(cluster):
    """Each share is normalized by itself; the statistics of the shares are averaged."""
    weights = {"rows": np.array([2, 3, 3])}

    def build():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.Dense(3, "softmax"),
            ]
        )
        model.compile("sgd", loss="sparse_categorical_crossentropy")
        return model

    x, y = labelled_rows(8)
    run = cluster.train(build, {"train": (x, y)}, workers=3, epochs=1, strategy=SYNC)
    shares = [x[0:2], x[2:5], x[5:8]]
    means = np.stack([share.mean(0) for share in shares])
    variances = np.stack([share.var(0) for share in shares])
    norm = run.model.layers[0]
    mean = np.average(means, axis=0, weights=weights["rows"])
    variance = np.average(variances, axis=0, weights=weights["rows"])
    np.testing.assert_allclose(norm.moving_mean.numpy(), 0.5 * mean, atol=1e-6)
    np.testing.assert_allclose(norm.moving_variance.numpy(), 0.5 + 0.5 * variance, atol=1e-6)


@pytest.mark.parametrize("name", ["subclassed"])
def test_synchronized_normalization_is_refused(cluster, name):
    from kdist.errors import ConfigError

    case = CASES[name]
    with pytest.raises(ConfigError, match="synchronized=True"):
        cluster.prepare(case.build, case.data, workers=2, strategy=SYNC)
