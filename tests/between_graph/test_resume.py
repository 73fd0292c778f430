"""Clients go on inside of an epoch, and with what other modes have come to."""

import functools

import numpy as np
import pytest

from tests.engine import harness
from tests.engine.cases import ROWS
from tests.ps import test_resume as in_graph
from tests.ps.resuming import go_on, keep

test_asynchronous_workers_go_on = (
    in_graph.test_asynchronous_workers_go_on_with_the_rows_that_are_left
)


@pytest.mark.slow
@pytest.mark.parametrize(("update", "workers"), [("sync", 2), ("async", 1)])
def test_it_equals_the_unbroken_training(cluster, update, workers, tmp_path):
    in_graph.test_it_equals_the_unbroken_training(cluster, update, workers, tmp_path)


@pytest.mark.parametrize("writes", ["single", pytest.param("between", marks=pytest.mark.slow)])
def test_one_process_and_a_client_go_on_with_each_others_checkpoints(cluster, writes, tmp_path):
    """With one client nothing is left to chance, so the end is that of one process."""
    prepare = {
        "single": functools.partial(harness.prepare, replicas=1),
        "between": functools.partial(cluster.prepare, workers=1),
    }
    build = functools.partial(in_graph.dropout, rate=0.0)  # Masks are drawn anew in another mode.
    first, then = writes, "between" if writes == "single" else "single"
    unbroken = harness.train(build, ROWS, epochs=3)
    half = prepare[first](build, ROWS, epochs=3, max_steps=in_graph.CUT)
    keep(half, tmp_path)
    half.trainer.run()
    run = prepare[then](build, ROWS, epochs=3)
    assert go_on(run, tmp_path).step_in_epoch == in_graph.CUT % 5
    run.trainer.run()
    store = run.engine.loop.store
    store.write_to_model()
    assert store.num_updates == run.trainer.state.batches_seen == 15
    for mine, theirs in zip(harness.numpy_weights(run.model), unbroken.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5, rtol=0)
