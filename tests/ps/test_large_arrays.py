"""Arrays that no graph can carry reach the workers another way: batch by batch, from the chief.

TensorFlow's limit is 2 GB; here it is lowered to a few bytes.
"""

import keras
import numpy as np
import pytest

from kdist.distribute.loops import resident_data
from tests.engine.harness import assert_same, fit, labelled_rows
from tests.ps.models import constant_gradient, numbered_rows, seen_counts
from tests.ps.test_data import FORMS
from tests.ps.test_equals_keras import dense

NUM_ROWS = 53


@pytest.fixture(autouse=True)
def _low_limit(monkeypatch):
    monkeypatch.setattr(resident_data, "RESIDENT_BYTES", 100)


@pytest.mark.parametrize(("update", "workers"), [("async", 1), ("sync", 3)])
def test_training_and_validation_equal_plain_keras(cluster, update, workers):
    build = dense(lambda: keras.optimizers.Adam(0.02))
    x, y = labelled_rows()
    data = {"train": (x, y), "validation": (x[:13], y[:13])}
    run = cluster.train(build, data, workers=workers, strategy={"update": update})
    assert not run.loop._data.holds(run.loop._source)
    assert_same(run, fit(build, data))


@pytest.mark.parametrize(
    "strategy", [{"update": "async"}, {"update": "sync", "replicas_to_aggregate": 2}]
)
def test_each_row_once_a_pass(cluster, strategy):
    build = constant_gradient(lambda: keras.optimizers.SGD(0.5), num_rows=NUM_ROWS)
    run = cluster.train(
        build, {"train": numbered_rows(NUM_ROWS)}, workers=3, strategy=strategy, shuffle=True
    )
    assert run.state.examples_seen == 2 * NUM_ROWS
    np.testing.assert_array_equal(seen_counts(run.model), 1)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dataset", "stream", "generator", "py_dataset", "function"])
def test_every_form_of_data_in_synchronous_steps(cluster, form):
    """Shares are cut from whatever batches the chief reads; each row counts once a pass."""
    make, settings = FORMS[form]
    build = constant_gradient(lambda: keras.optimizers.SGD(0.5), num_rows=NUM_ROWS)
    strategy = {"update": "sync"}
    run = cluster.train(build, {"train": make()}, workers=3, strategy=strategy, **settings)
    assert run.state.examples_seen == 2 * NUM_ROWS
    np.testing.assert_array_equal(seen_counts(run.model), 1)
