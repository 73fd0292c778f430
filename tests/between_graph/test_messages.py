"""What a worker's calls cost on the servers: each tensor that goes there or comes back."""

from collections import Counter

import pytest
import tensorflow as tf

from kdist.distribute.between_graph.desk import EVALUATE, TRAIN, Opened
from tests.between_graph.test_waits import build, labelled_rows

v1 = tf.compat.v1


class Recorder:
    """A session that keeps what each device runs of the last call."""

    def __init__(self, session):
        self._session = session
        self.partitions = {}

    def run(self, fetches, feeds):
        """Run, and keep the graphs by device."""
        options, metadata = v1.RunOptions(output_partition_graphs=True), v1.RunMetadata()
        found = self._session.run(fetches, feeds, options=options, run_metadata=metadata)
        self.partitions = {
            Counter(node.device for node in graph.node).most_common(1)[0][0]: graph
            for graph in metadata.partition_graphs
        }
        return found

    def num(self, job, op):
        """Return how many operations of a kind the devices of a job run."""
        return sum(
            node.op == op
            for device, graph in self.partitions.items()
            for node in graph.node
            if f"/job:{job}/" in device
        )


@pytest.fixture
def rig(cluster):
    run = cluster.prepare(build, {"train": labelled_rows()}, workers=1)
    worker = run.loop._worker
    worker.open_desk(Opened(next_id=0, end=4))
    return worker, Recorder(worker._session)


def test_a_ticket_is_one_tensor_there_and_one_back(rig):
    worker, session = rig
    ticket = worker.graph.desk_calls.take(session, most=2, unit=1)
    assert ticket.num_ids == 2
    assert (session.num("ps", "_Recv"), session.num("ps", "_Send")) == (1, 1)


@pytest.mark.parametrize(("kind", "num_servers"), [(TRAIN, 2), (EVALUATE, 1)])
def test_a_question_for_ids_is_one_tensor_there_and_one_back_for_each_server(
    rig, kind, num_servers
):
    worker, session = rig
    known = worker.graph.desk_calls.known(session, kind, 0, 3)
    assert known.tolist() == [False, False, False]
    assert session.num("ps", "_Recv") == session.num("ps", "_Send") == num_servers


def test_a_step_is_two_tensors_for_each_server(rig):
    """Parameters and gradients; a call has one more for its beginning, and two for its end."""
    worker, session = rig
    graph = worker.graph
    session.run(graph.blocks[TRAIN, 1], {graph.first_id: 0, graph.base: 0})
    assert (session.num("ps", "_Recv"), session.num("ps", "_Send")) == (4, 6)
    assert worker.known(TRAIN, 0, 1).all()
