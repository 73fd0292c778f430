"""N of M: each update is the mean of exactly N shares of its step, and no row is lost."""

import random
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.loops.inner_loop import never_stop
from tests.engine.harness import labelled_rows, numpy_weights
from tests.ps.gates import Held
from tests.ps.models import BATCH_SIZE, constant_gradient, numbered_rows, seen_counts
from tests.ps.recorded import rows_by_step, units_by_step
from tests.ps.test_equals_keras import dense

DEADLINE_S = 60


def before_each_turn(run, action):
    """Let workers run the operation that `action(worker)` returns before each share."""
    step = run.loop._share_step
    turn = step.turn

    def delayed(dealt, replica, stretch, worker, *rest):
        with tf.control_dependencies([action(worker)]):
            dealt = tf.nest.map_structure(tf.identity, dealt)
        return turn(dealt, replica, stretch, worker, *rest)

    step.turn = delayed


def sleeping(seconds_of):
    """Return an action that sleeps; test, chief and servers share a process."""

    def sleep(worker):
        time.sleep(seconds_of(int(worker)))
        return worker

    return lambda worker: tf.numpy_function(sleep, [worker], tf.int64)


def n_of_m(num_shares, **others):
    return {"update": "sync", "replicas_to_aggregate": num_shares, **others}


def replayed(build, x, y, contributions, num_shares):
    """Return the weights that plain Keras has after the same rows, step by step."""
    keras.utils.set_random_seed(0)
    model = build()
    for rows in rows_by_step(contributions, len(x), num_shares):
        model.train_on_batch(x[rows], y[rows])
    return numpy_weights(model)


@pytest.mark.parametrize(("num_shares", "ps"), [(2, 2), (1, 1)])
def test_each_update_is_the_mean_of_n_shares(cluster, num_shares, ps):
    """What workers of any speed contributed, trained again by plain Keras, gives these weights."""
    rng = random.Random(num_shares)
    build = dense(lambda: keras.optimizers.Adam(0.02, global_clipnorm=0.3), l2=0.01)
    x, y = labelled_rows(43)
    run = cluster.prepare(
        build, {"train": (x, y)}, workers=3, ps=ps, epochs=3, strategy=n_of_m(num_shares)
    )
    before_each_turn(run, sleeping(lambda worker: rng.random() * (0.03 if worker else 0.01)))
    run.run()
    wait_for(lambda: have_ended(run), "shares that come too late")
    facts = run.loop.store.tallies.contributions.read()
    weights = replayed(build, x, y, facts.recent, num_shares)
    for mine, theirs in zip(run.weights, weights, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    by_step = units_by_step(facts.recent)
    for epoch in range(3):
        units = sorted(unit for step in range(epoch * 6, epoch * 6 + 6) for unit in by_step[step])
        assert units == list(range(epoch * 6 * num_shares, (epoch + 1) * 6 * num_shares))
    assert run.loop.store.num_updates == run.state.batches_seen == 18
    assert run.state.examples_seen == 3 * 43
    assert facts.num_dropped == int(run.loop.aggregation.read().dropped) > 0


def counting(cluster, num_shares, num_steps, **others):
    num_rows = num_steps * BATCH_SIZE
    build = constant_gradient(lambda: keras.optimizers.SGD(0.5), num_rows=num_rows)
    strategy = n_of_m(num_shares, **others)
    return cluster.prepare(
        build, {"train": numbered_rows(num_rows)}, workers=3, epochs=1, strategy=strategy
    )


def test_no_step_waits_for_a_backup(cluster):
    """A worker that does not move at all: the others train every row, also of the last step."""
    run = counting(cluster, 2, 12)
    held = Held(run.loop.store, 2)
    before_each_turn(run, held)
    run.run()
    assert held.has_arrived
    facts = run.loop.store.tallies.contributions.read()
    assert facts.by_worker.keys() == {0, 1}
    assert run.state.examples_seen == 12 * BATCH_SIZE
    assert (seen_counts(run.model) == 1).all()
    before = numpy_weights(run.model)
    held.let_go()
    wait_for(lambda: int(run.loop.aggregation.read().dropped) > 0, "the late share")
    run.loop.store.write_to_model()
    for was, now in zip(before, numpy_weights(run.model), strict=True):
        np.testing.assert_array_equal(was, now)


def test_all_wait_where_all_are_needed(cluster):
    """With N = M nothing moves without the worker that is held; when it goes on, so do all."""
    run = counting(cluster, 3, 6)
    held = Held(run.loop.store, 1)
    before_each_turn(run, held)
    thread = threading.Thread(target=run.run)
    thread.start()
    wait_for(lambda: held.has_arrived, "worker-1")
    wait_for(lambda: int(run.loop.aggregation.read().count) == 2, "two shares of three")
    assert int(run.loop.aggregation.read().step) == 0
    held.let_go()
    thread.join(DEADLINE_S)
    assert run.state.batches_seen == run.loop.store.num_updates == 6
    assert run.loop.store.tallies.contributions.read().by_worker == {0: 6, 1: 6, 2: 6}
    assert (seen_counts(run.model) == 1).all()


def test_fewer_replicas_than_workers(cluster):
    """With `total_replicas` two of three workers train at once; all evaluate."""
    run = counting(cluster, 2, 6, total_replicas=2)
    run.run()
    facts = run.loop.store.tallies.contributions.read()
    assert sum(facts.by_worker.values()) == 12
    assert facts.num_dropped == 0
    assert (seen_counts(run.model) == 1).all()


def test_lost_wake_up_is_made_up_for(cluster, monkeypatch):
    """A call that nobody waits for any more takes a turn; the chief wakes all that wait."""
    with monkeypatch.context() as patched:
        # What servers are traced with: nobody is ever woken by them.
        patched.setattr(tf.queue.QueueBase, "enqueue_many", lambda queue, values: tf.no_op())
        run = counting(cluster, 3, 8)
    run.run()
    assert run.loop.store.num_updates == 8
    assert (seen_counts(run.model) == 1).all()


def test_error_in_a_share_ends_training(cluster):
    """What a worker fails with reaches the chief while the others wait for its share."""

    def build():
        model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 3)])
        model.compile("sgd", loss="mse")
        return model

    x = np.zeros((24, 2), "int32")
    x[13] = 7
    run = cluster.prepare(
        build, {"train": (x, np.zeros((24, 2, 3)))}, workers=3, strategy=n_of_m(3)
    )
    with pytest.raises((tf.errors.OpError, ValueError)):
        run.loop.train(0, 3, steps_per_call=1, on_progress=never_stop)


def have_ended(run):
    dealing = run.loop.aggregation.read()
    return (dealing.ended == dealing.stretch).all()


def wait_for(condition, what):
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, f"Gave up waiting for {what}."
        time.sleep(0.01)
