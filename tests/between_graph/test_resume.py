"""Clients go on inside of an epoch, and with what other modes have come to."""

import pytest

from tests.ps import test_resume as in_graph

test_asynchronous_workers_go_on = (
    in_graph.test_asynchronous_workers_go_on_with_the_rows_that_are_left
)


@pytest.mark.slow
@pytest.mark.parametrize(("update", "workers"), [("sync", 2), ("async", 1)])
def test_it_equals_the_unbroken_training(cluster, update, workers, tmp_path):
    in_graph.test_it_equals_the_unbroken_training(cluster, update, workers, tmp_path)
