"""However many clients take tickets, and whoever of them is lost, every step is applied once."""

import threading
import time

import keras
import numpy as np
import pytest

from kdist.distribute.between_graph import loop as between_graph_loop
from kdist.distribute.loops.inner_loop import never_stop
from kdist.distribute.values import to_numpy
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
    "adam": lambda: keras.optimizers.Adam(2.0**-6),
}


def assert_constant_steps(run, start, optimizer, num_steps):
    """Check weights, counters and rows of a `constant_gradient` model."""
    run.loop.store.write_to_model()
    expected = after_constant_steps(start, optimizer(), num_steps)
    for mine, theirs in zip(numpy_weights(run.model), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert [o.num_updates for o in run.loop.store.optimizers] == [num_steps] * 2
    assert run.loop.logs.num_examples(run.loop.read_logs()) == num_steps * BATCH_SIZE
    run.loop.logs.results(run.loop.read_logs())
    assert (seen_counts(run.model) == 1).all()


@pytest.mark.parametrize(
    ("workers", "steps_per_execution"), [pytest.param(2, 1, marks=pytest.mark.slow), (3, 2)]
)
def test_counts(cluster, workers, steps_per_execution):
    """103 rows make 13 batches, the last of 7; validation counts every row once, too."""
    num_rows, epochs = 103, 3

    def build():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        loss = lambda y_true, y_pred: keras.ops.sum(y_pred, axis=-1)  # noqa: E731
        model.compile(keras.optimizers.Adam(0.01), loss=loss, metrics=[RowsSeen(num_rows)])
        return model

    x, y = numbered_rows(num_rows)
    run = cluster.train(
        build,
        {"train": (x, y), "validation": (x[:41], y[:41])},
        workers=workers,
        epochs=epochs,
        shuffle=True,
        steps_per_execution=steps_per_execution,
    )
    assert (run.state.batches_seen, run.state.examples_seen) == (epochs * 13, epochs * num_rows)
    assert run.loop.store.num_updates == epochs * 13
    assert [facts.examples for facts in run.epochs] == [num_rows] * epochs
    assert run.history["seen"] == [num_rows] * epochs
    assert run.history["val_seen"] == [41] * epochs
    assert (seen_counts(run.model) == (np.arange(num_rows) < 41)).all()


@pytest.mark.parametrize("name", [pytest.param("sgd", marks=pytest.mark.slow), "adam"])
def test_constant_gradient(cluster, name):
    """Three racing clients end where one step after the other would end."""
    num_steps = 60
    num_rows = num_steps * BATCH_SIZE
    build = constant_gradient(OPTIMIZERS[name], num_rows=num_rows, units=20_000)
    run = cluster.prepare(
        build, {"train": numbered_rows(num_rows)}, workers=3, epochs=1, steps_per_execution=7
    )
    start = numpy_weights(run.model)
    run.run()
    assert_constant_steps(run, start, OPTIMIZERS[name], num_steps)
    assert sum(run.ids_of_followers) > 0


def train(run, first, num_steps):
    done = run.loop.train(first, num_steps, steps_per_call=2, on_progress=never_stop)
    assert done == num_steps


def wait_for(is_reached, what):
    end_s = time.monotonic() + 30
    while not is_reached():
        assert time.monotonic() < end_s, f"gave up waiting for {what}"
        time.sleep(0.002)


def test_late_worker_trains_no_more_than_is_left(cluster):
    """A worker that comes when most steps are done takes some of the rest, and nothing beyond."""
    num_steps = 80
    num_rows = num_steps * BATCH_SIZE
    build = constant_gradient(OPTIMIZERS["sgd"], num_rows=num_rows, is_slow=True)
    run = cluster.prepare(
        build,
        {"train": numbered_rows(num_rows)},
        workers=3,
        steps_per_execution=2,
        losses=lambda: [2],  # It is not there at first.
    )
    start = numpy_weights(run.model)
    early, late = run.followers
    run.start_follower(early)
    train(run, 0, num_steps // 2)
    run.start_follower(late)
    wait_for(lambda: to_numpy(run.loop._worker.desk.arrived).all(), "the late worker")
    train(run, num_steps // 2, num_steps // 2)
    run.finish()
    assert_constant_steps(run, start, OPTIMIZERS["sgd"], num_steps)
    assert len(run.ids_of_followers) == 2
    assert 0 < sum(run.ids_of_followers) < num_steps


def test_a_stretch_that_is_stopped_is_counted_exactly(cluster, monkeypatch):
    """Steps that nobody has taken yet are left out, and are the next ones to train."""
    monkeypatch.setattr(between_graph_loop, "PROGRESS_EVERY_S", 0.0)
    num_steps = 80
    num_rows = num_steps * BATCH_SIZE
    build = constant_gradient(OPTIMIZERS["adam"], num_rows=num_rows, is_slow=True)
    run = cluster.prepare(
        build, {"train": numbered_rows(num_rows)}, workers=2, steps_per_execution=2
    )
    start = numpy_weights(run.model)
    run.start_follower(*run.followers)
    done = run.loop.train(0, num_steps, steps_per_call=2, on_progress=lambda num_done: True)
    assert 0 < done < num_steps
    assert run.loop.store.num_updates == done
    train(run, done, num_steps - done)
    run.finish()
    assert_constant_steps(run, start, OPTIMIZERS["adam"], num_steps)


def test_tickets_of_a_lost_worker_are_computed_again(cluster):
    """A worker takes a ticket, pushes a part of it, and is never heard of again."""
    num_steps = 40
    num_rows = num_steps * BATCH_SIZE
    build = constant_gradient(OPTIMIZERS["adam"], num_rows=num_rows, is_slow=True)
    losses: list[int] = []
    run = cluster.prepare(
        build,
        {"train": numbered_rows(num_rows)},
        workers=2,
        steps_per_execution=2,
        losses=lambda: losses,
    )
    start = numpy_weights(run.model)
    other = run.followers[0]._worker

    def take_and_die() -> None:
        other.open(30)
        other.wait_until_ready(30, "worker-0")
        other.arrive()
        wait_for(lambda: taken.append(other.take()) or taken[-1].num_ids, "a ticket")
        ticket = taken[-1]
        other.run(ticket._replace(end=ticket.first + 1))
        others = num_steps - ticket.num_ids + 1
        wait_for(lambda: to_numpy(run.loop.store.num_applied) == others, "the other steps")
        other.close()
        losses.append(1)

    taken: list = []
    thread = threading.Thread(target=take_and_die, daemon=True)
    thread.start()
    train(run, 0, num_steps)
    thread.join(30)
    assert len(losses) == 1
    assert taken[-1].num_ids > 1
    assert_constant_steps(run, start, OPTIMIZERS["adam"], num_steps)


def test_bounded_staleness(cluster):
    """What is older than the bound is computed again, by the client itself; nothing is lost."""
    num_steps = 40
    num_rows = num_steps * BATCH_SIZE
    build = constant_gradient(OPTIMIZERS["sgd"], num_rows=num_rows)
    run = cluster.prepare(
        build,
        {"train": numbered_rows(num_rows)},
        workers=3,
        epochs=1,
        strategy={"max_staleness": 0},
    )
    start = numpy_weights(run.model)
    run.run()
    assert_constant_steps(run, start, OPTIMIZERS["sgd"], num_steps)
    facts = run.loop.store.tallies.contributions.read()
    assert (facts.num_taken, facts.max_staleness) == (num_steps, 0)
    assert sum(facts.by_worker.values()) == num_steps
