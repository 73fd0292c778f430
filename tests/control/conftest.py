import socket
import threading

import pytest

from kdist.cluster.control import ControlChief, ControlPeer
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType

CONFIG = {"seed": 0, "optimizer.learning_rate": 0.01}


def free_ports(num):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num)]
    ports = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports


def make_spec(*, chief=1, worker=0, ps=0):
    ports = iter(free_ports(chief + worker + ps))
    counts = {TaskType.CHIEF: chief, TaskType.WORKER: worker, TaskType.PS: ps}
    return ClusterSpec(
        {
            kind: tuple(f"127.0.0.1:{next(ports)}" for _ in range(num))
            for kind, num in counts.items()
            if num
        }
    )


class Call(threading.Thread):
    """Runs a function in a thread; `result` returns or raises what it did."""

    def __init__(self, function, *args, **kwargs):
        super().__init__(daemon=True)
        self._work = lambda: function(*args, **kwargs)
        self._outcome = None
        self.start()

    def run(self):
        try:
            self._outcome = (self._work(), None)
        except BaseException as error:
            self._outcome = (None, error)

    def result(self, deadline_s=20.0):
        self.join(deadline_s)
        assert self._outcome is not None, "the call did not return in time"
        value, error = self._outcome
        if error is not None:
            raise error
        return value


class Cluster:
    """Makes the ends of one cluster's control channel and closes them after the test."""

    def __init__(self, spec):
        self.spec = spec
        self.lines = []
        self._ends = []

    def chief(self, config=CONFIG, **more):
        defaults = {"start_timeout_s": 20.0, "lost_timeout_s": 20.0, "say_every_s": 0.3}
        chief = ControlChief(self.spec, config, say=self.lines.append, **{**defaults, **more})
        self._ends.append(lambda: chief.done(1))
        return chief

    def peer(self, task, config=CONFIG, **more):
        defaults = {"start_timeout_s": 20.0, "lost_timeout_s": 20.0, "say_every_s": 0.3}
        peer = ControlPeer(self.spec, task, config, say=self.lines.append, **{**defaults, **more})
        self._ends.append(peer.close)
        return peer

    def peers(self, **more):
        return [self.peer(task, **more) for task in self.spec.tasks() if task != self.spec.chief]

    def start(self, *, chief_more=None, **peer_more):
        chief, peers = self.chief(**(chief_more or {})), self.peers(**peer_more)
        calls = [Call(end.rendezvous) for end in (chief, *peers)]
        for call in calls:
            call.result()
        return chief, peers

    def close(self):
        for end in reversed(self._ends):
            end()


@pytest.fixture
def cluster_of():
    made = []

    def make(**counts):
        made.append(Cluster(make_spec(**counts)))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def task(name):
    kind, _, index = name.partition("-")
    return Task(TaskType(kind), int(index))
