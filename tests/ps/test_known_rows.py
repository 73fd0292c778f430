"""Workers trace a step with all shapes known where each share has as many rows."""

from tests.engine.recording import assert_workers_know, on_servers


@on_servers
def test_a_worker_knows_the_rows_of_its_share(cluster, num_rows, update, known):
    assert_workers_know(cluster.train, num_rows, update, known)
