"""However many workers push at once, no update, row or count is lost, and none counts twice."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.loops import coordinator_loop
from kdist.distribute.loops.inner_loop import never_stop
from kdist.distribute.servers.packets import Push
from tests.engine.harness import numpy_weights
from tests.ps.models import (
    BATCH_SIZE,
    RowsSeen,
    after_constant_steps,
    constant_gradient,
    numbered_rows,
    seen_counts,
)

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(2.0**-6),
    "momentum": lambda: keras.optimizers.SGD(2.0**-6, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(2.0**-6),
}


def run_all(loop, first, num_steps, *, steps_per_call=1):
    assert num_steps == loop.train(
        first, num_steps, steps_per_call=steps_per_call, on_progress=never_stop
    )


@pytest.mark.parametrize(
    ("workers", "steps_per_execution"),
    [(2, 1), (3, 7), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in [(3, 4), (2, 10)])],
)
def test_counts(cluster, workers, steps_per_execution):
    """103 rows make 13 batches, the last of 7; no metric leaves its range."""
    num_rows, epochs = 103, 3

    def build():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1, "sigmoid")]
        )
        model.compile(
            keras.optimizers.Adam(0.01),
            loss=lambda y_true, y_pred: keras.losses.binary_crossentropy(y_true % 2, y_pred),
            metrics=[
                RowsSeen(num_rows),
                Parity(keras.metrics.BinaryAccuracy()),
                Parity(keras.metrics.AUC(num_thresholds=11)),
                Parity(keras.metrics.F1Score(threshold=0.5)),
            ],
        )
        return model

    x = np.random.default_rng(1).normal(size=(num_rows, 3)).astype("float32")
    y = np.arange(num_rows).astype("float32")[:, None]
    run = cluster.prepare(
        build,
        {"train": (x, y), "validation": (x[:41], y[:41])},
        workers=workers,
        epochs=epochs,
        shuffle=True,
        steps_per_execution=steps_per_execution,
    )
    run.run()
    assert (run.state.batches_seen, run.state.examples_seen) == (epochs * 13, epochs * num_rows)
    assert run.loop.store.num_updates == epochs * 13
    assert [facts.examples for facts in run.epochs] == [num_rows] * epochs
    assert run.history["seen"] == [num_rows] * epochs
    assert run.history["val_seen"] == [41] * epochs
    assert (seen_counts(run.model) == (np.arange(num_rows) < 41)).all()
    for name, values in run.history.items():
        if not name.endswith(("loss", "seen")):
            assert all(0.0 <= value <= 1.0 for value in values), name
    expected = run.model.evaluate(x[:41], y[:41], verbose=0, return_dict=True)
    got = {f"val_{name}": run.history[f"val_{name}"][-1] for name in expected}
    assert got == pytest.approx({f"val_{k}": v for k, v in expected.items()}, abs=1e-5)


class Parity(keras.metrics.Metric):
    """Feeds a metric with whether the label is odd."""

    def __init__(self, metric):
        super().__init__(name=metric.name)
        self.metric = metric

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.metric.update_state(y_true % 2, y_pred)

    def result(self):
        return keras.ops.mean(self.metric.result())

    def reset_state(self):
        self.metric.reset_state()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("workers", "steps_per_execution"), [(2, 1), (3, 7)])
def test_constant_gradient(cluster, name, workers, steps_per_execution):
    """Racing workers end where one step after the other would end.

    The variables are large enough for updates without a lock to meet.
    """
    num_rows, epochs = 30 * BATCH_SIZE, 2
    build = constant_gradient(OPTIMIZERS[name], num_rows=num_rows, units=20_000)
    run = cluster.prepare(
        build,
        {"train": numbered_rows(num_rows)},
        workers=workers,
        epochs=epochs,
        steps_per_execution=steps_per_execution,
    )
    start = numpy_weights(run.model)
    assert {bucket.server_index for bucket in run.engine.layout.buckets} == {0, 1}
    run.run()
    expected = after_constant_steps(start, OPTIMIZERS[name](), 30 * epochs)
    for mine, theirs, before in zip(run.weights, expected, start, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
        if name == "sgd":
            np.testing.assert_allclose(mine, before - 2.0**-6 * 60, atol=1e-6)
    for optimizer in run.loop.store.optimizers:
        assert optimizer.num_updates == 30 * epochs
    assert (seen_counts(run.model) == 1).all()


def test_a_stretch_that_is_stopped_is_counted_exactly(cluster, monkeypatch):
    """Steps that were not dispatched yet are left out, and are the next ones to train."""
    monkeypatch.setattr(coordinator_loop, "PROGRESS_EVERY_S", 0.0)
    monkeypatch.setattr(coordinator_loop, "LOOK_EVERY_S", 0.0)
    num_steps = 60
    build = constant_gradient(OPTIMIZERS["adam"], num_rows=num_steps * BATCH_SIZE)
    run = cluster.prepare(build, {"train": numbered_rows(num_steps * BATCH_SIZE)}, workers=2)
    start = numpy_weights(run.model)
    done = run.loop.train(0, num_steps, steps_per_call=1, on_progress=lambda num_done: True)
    assert 0 < done < num_steps
    assert int(run.loop.store.num_applied.numpy()) == run.loop.store.num_updates == done
    run_all(run.loop, done, num_steps - done)
    run.loop.store.write_to_model()
    expected = after_constant_steps(start, OPTIMIZERS["adam"](), num_steps)
    for mine, theirs in zip(numpy_weights(run.model), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    assert run.loop.logs.num_examples(run.loop.read_logs()) == num_steps * BATCH_SIZE
    run.loop.logs.results(run.loop.read_logs())
    assert (seen_counts(run.model) == 1).all()


def everything(store):
    """Return all values that the servers hold."""
    values = [store.sums.numpy(), store.states.numpy(), store.num_applied.numpy()]
    for optimizer in store.optimizers:
        values += [v.numpy() for v in (*optimizer.buckets, *optimizer.optimizer.variables)]
    return values


def test_steps_that_run_twice_count_once(cluster):
    """A dispatch of ten whose worker died after four is run again as a whole."""
    num_steps = 30

    def build():
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(4),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(2),
            ]
        )
        model.compile(keras.optimizers.Adam(0.02), loss="mse", metrics=[RowsSeen(240)])
        return model

    x = np.random.default_rng(2).normal(size=(240, 3)).astype("float32")
    y = np.arange(240).astype("float32")[:, None] * np.ones((1, 2), "float32")
    y = y[:, :1]
    loop = cluster.prepare(build, {"train": (x, y)}, workers=2).loop
    run_all(loop, 0, 4)
    run_all(loop, 0, 10, steps_per_call=10)
    assert loop.store.num_updates == 10
    run_all(loop, 10, num_steps - 10, steps_per_call=10)
    before = everything(loop.store)
    assert loop.logs.num_examples(loop.read_logs()) == 240
    run_all(loop, 0, num_steps, steps_per_call=10)
    run_all(loop, 25, 5)
    for was, now in zip(before, everything(loop.store), strict=True):
        np.testing.assert_array_equal(was, now)


def push_to_one(store, server_index, *, step_id):
    """Push one step of a `constant_gradient` model to one server only, as a dying worker does."""
    server = store.servers[server_index]
    gradients = [tf.ones_like(bucket.value) for bucket in server.buckets]
    aux = np.zeros([store.aux.num_logged + store.aux.num_states], "float32")
    aux[0] = BATCH_SIZE
    push = Push(tf.constant(step_id, tf.int64), tf.constant(True), gradients, tf.constant(aux))
    store.push_to(server_index, push)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_push_that_reached_one_server(cluster, name):
    """A worker that died between its pushes to two servers: the step is run again on both."""
    num_rows = 20 * BATCH_SIZE
    build = constant_gradient(OPTIMIZERS[name], num_rows=num_rows)
    run = cluster.prepare(build, {"train": numbered_rows(num_rows)}, workers=2)
    store, start = run.loop.store, numpy_weights(run.model)
    push_to_one(store, 0, step_id=5)
    push_to_one(store, 1, step_id=7)
    run_all(run.loop, 0, 20, steps_per_call=4)
    store.write_to_model()
    expected = after_constant_steps(start, OPTIMIZERS[name](), 20)
    for mine, theirs in zip(numpy_weights(run.model), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    assert [optimizer.num_updates for optimizer in store.optimizers] == [20, 20]
    assert run.loop.logs.num_examples(run.loop.read_logs()) == num_rows
    assert int(store.num_applied.numpy()) == 20
