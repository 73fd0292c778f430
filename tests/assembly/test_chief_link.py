"""What the loss of a task means for the chief; the control channel is told, not used."""

from types import SimpleNamespace

import pytest

from kdist import config as kdist_config
from kdist.assembly import chief_link
from kdist.assembly.chief_link import ChiefLink
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import traits_of
from kdist.errors import PeerLostError

WORKERS = [Task(TaskType.WORKER, index) for index in range(2)]
SERVER = Task(TaskType.PS, 0)
PS = ClusterSpec({TaskType.CHIEF: ("a:1",), TaskType.WORKER: ("a:2", "a:3"), TaskType.PS: ("a:4",)})


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""
    now = [100.0]
    monkeypatch.setattr(chief_link, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def link(monkeypatch):
    monkeypatch.setattr(chief_link, "later", lambda delay_s, action: None)
    config = kdist_config.load({"cluster": {"start_timeout_s": 20}})
    told = []
    made = ChiefLink(
        config, {}, traits_of("ps"), PS, lambda *event: told.append(event), lambda error: None
    )
    made.told = told
    return made


def test_training_goes_on_while_one_worker_is_there(link, clock):
    link._lose(WORKERS[0])
    clock[0] += 1000
    link.check()
    assert link.told == [("task_lost", WORKERS[0])]
    assert link.num_workers_lost == 1


def test_without_a_worker_it_waits_only_as_long_as_for_the_start(link, clock):
    for worker in WORKERS:
        link._lose(worker)
    clock[0] += 19
    link.check()
    clock[0] += 2
    with pytest.raises(PeerLostError, match=r"20 s \(cluster.*worker-0, worker-1"):
        link.check()


def test_a_worker_that_is_back_ends_the_wait(link, clock):
    for worker in WORKERS:
        link._lose(worker)
    clock[0] += 15
    link._regain(WORKERS[1])
    clock[0] += 100
    link.check()
    assert link.told[-1] == ("task_rejoined", WORKERS[1])


def test_a_lost_server_ends_training_at_once_and_is_named(link, clock):
    link._lose(SERVER)
    with pytest.raises(PeerLostError, match=r"ps-0 \(a:4\) was lost"):
        link.check()
    assert str(link.find_lost()) == "ps-0 (a:4) was lost."
    assert link.num_workers_lost == 0
