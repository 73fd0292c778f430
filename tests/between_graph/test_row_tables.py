"""`strategy.sparse=rows` where every worker is a client of its own."""

import pytest

from tests.engine.harness import assert_same
from tests.engine.harness import train as train_alone
from tests.engine.test_row_tables import OPTIMIZERS, model_of, rows

BY_ROWS = {"strategy": {"sparse": "rows"}}


@pytest.mark.parametrize("name", [pytest.param("adagrad", marks=pytest.mark.slow), "adam"])
def test_one_worker_equals_one_process(cluster, name):
    build = model_of(OPTIMIZERS[name])
    data = {"train": rows(), "validation": rows(11)}
    run = cluster.train(build, data, workers=1, **BY_ROWS)
    assert_same(run, train_alone(build, data, **BY_ROWS))
