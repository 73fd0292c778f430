"""Every wait of a client has a deadline, and says whom it waited for."""

import socket

import keras
import pytest

from kdist.assembly.same_data import refuse_other_facts
from kdist.cluster.task import Task, TaskType
from kdist.distribute.between_graph.reach import wait_for_servers
from kdist.distribute.loops.inner_loop import never_stop
from kdist.distribute.values import write
from kdist.errors import ConfigError, TaskTimeoutError
from tests.engine.harness import labelled_rows


def build():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    return model


def test_server_that_does_not_listen():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(TaskTimeoutError, match=rf"ps-1 at {address}"):
            wait_for_servers({"ps-1": address}, timeout_s=0.1)


def test_chief_waits_for_workers_that_do_not_come(cluster):
    run = cluster.prepare(build, {"train": labelled_rows()}, workers=3)
    run.loop._start_timeout_s = 0.2
    with pytest.raises(TaskTimeoutError, match="worker-1, worker-2"):
        run.loop.train(0, 4, steps_per_call=1, on_progress=never_stop)


def test_follower_waits_for_the_chief(cluster):
    """A chief that has not initialized the servers is named."""
    run = cluster.prepare(build, {"train": labelled_rows()}, workers=2)
    write(run.loop._worker.desk.is_ready, 0)
    [follower] = run.followers
    follower._start_timeout_s = 0.3
    with pytest.raises(TaskTimeoutError, match="waiting for worker-0"):
        follower.follow("worker-0", compare=lambda notes: None, on_ready=lambda: None)


def test_other_data_than_the_chiefs_is_named():
    with pytest.raises(ConfigError, match="training rows: 7 on worker-0, 8 on worker-1"):
        refuse_other_facts(
            {"training rows": 8, "batches": 2},
            {"training rows": 7, "batches": 2},
            task=Task(TaskType.WORKER, 1),
            chief=Task(TaskType.WORKER, 0),
        )
