"""Workers trace a step with all shapes known where each share has as many rows."""

import pytest

from tests.engine.recording import traced_rows


@pytest.mark.parametrize(
    ("num_rows", "update", "known"), [(24, "async", 12), (20, "async", None), (24, "sync", 6)]
)
def test_a_worker_knows_the_rows_of_its_share(cluster, num_rows, update, known):
    seen = traced_rows(cluster.train, num_rows, workers=2, strategy={"update": update})
    assert known in seen
    assert seen <= {None, known}
