"""How old asynchronous gradients are: counted for every update, and bounded where asked for."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.loops.inner_loop import never_stop
from tests.engine.harness import numpy_weights
from tests.ps.gates import Held
from tests.ps.models import (
    BATCH_SIZE,
    after_constant_steps,
    constant_gradient,
    numbered_rows,
    seen_counts,
)

NUM_STEPS = 24
RATE = 0.5


def optimizer():
    return keras.optimizers.SGD(RATE)


def prepare(cluster, **settings):
    """Every update takes `RATE` from every weight, so that a weight tells how many there were."""
    num_rows = NUM_STEPS * BATCH_SIZE
    return cluster.prepare(
        constant_gradient(optimizer, num_rows=num_rows),
        {"train": numbered_rows(num_rows)},
        workers=3,
        epochs=1,
        **settings,
    )


class Watched:
    """Remembers how many updates the last attempt at each step has read; holds one worker."""

    def __init__(self, run, held):
        server = run.loop.store.servers[0]
        bucket_index = server.bucket_indices[0]
        self._first = float(server.buckets[0].numpy().ravel()[0])
        with tf.device(server.device):
            self._weights = tf.Variable(tf.zeros([NUM_STEPS]))
        step = run.loop._step
        contribution = step.contribution

        def watched(share, seeds, frozen, **options):
            gradients, aux, pulled = contribution(share, seeds, frozen, **options)
            weight = tf.reshape(pulled.buckets[bucket_index], [-1])[0]
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            index = [[share.y[0] // BATCH_SIZE]]
            with tf.control_dependencies([aux]):
                logged = self._weights.scatter_nd_update(index, [weight])
            with tf.control_dependencies([logged]):
                passed = held(worker)
            with tf.control_dependencies([passed]):
                return gradients, tf.identity(aux), pulled

        step.contribution = watched

    def num_read(self, step):
        return round((self._first - float(self._weights.numpy()[step])) / RATE)


def train(run, steps_per_call):
    """Run all steps as one stretch."""
    loop = run.loop
    loop.train(0, NUM_STEPS, steps_per_call=steps_per_call, on_progress=never_stop)
    loop.store.write_to_model()
    loop.logs.results(loop.read_logs())


def check(run, watched=None):
    """Compare what servers counted with what they remember, and with what the test saw."""
    facts = run.loop.store.tallies.contributions.read()
    assert facts.num_taken == NUM_STEPS == run.loop.store.num_updates
    assert sum(facts.histogram.values()) == sum(facts.by_worker.values()) == NUM_STEPS
    ages = [one.staleness for one in facts.recent]
    assert facts.mean_staleness == pytest.approx(np.mean(ages))
    assert facts.max_staleness == max(ages) == max(facts.histogram)
    assert [one.update for one in facts.recent] == list(range(NUM_STEPS))
    for one in facts.recent:
        if watched is not None:
            assert 0 <= one.update - watched.num_read(one.unit) <= one.staleness
    assert (seen_counts(run.model) == 1).all()
    return facts


def test_every_update_has_an_age(cluster):
    run = prepare(cluster)
    Watched(run, Held(run.loop.store, 1, until=7))
    train(run, 2)
    facts = check(run)
    assert facts.max_staleness >= 5
    assert facts.num_dropped == 0


@pytest.mark.parametrize(("limit", "steps_per_call"), [(0, 1), (2, 3)])
def test_no_applied_gradient_is_older_than_allowed(cluster, limit, steps_per_call):
    """What a slow worker computed from old parameters is refused, and computed again."""
    run = prepare(cluster, strategy={"max_staleness": limit})
    start = numpy_weights(run.model)
    watched = Watched(run, Held(run.loop.store, 2, until=limit + 4))
    train(run, steps_per_call)
    facts = check(run, watched)
    assert facts.max_staleness <= limit
    assert facts.num_dropped >= 1
    expected = after_constant_steps(start, optimizer(), NUM_STEPS)
    for mine, theirs in zip(numpy_weights(run.model), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
