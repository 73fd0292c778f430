"""What the loss of a task means for the chief; the control channel is told, not used."""

from types import SimpleNamespace

import pytest

from kdist import config as kdist_config
from kdist.assembly import chief_link
from kdist.assembly.chief_link import ChiefLink
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import traits_of
from kdist.errors import PeerLostError, TaskTimeoutError

WORKERS = [Task(TaskType.WORKER, index) for index in range(2)]
SERVER = Task(TaskType.PS, 0)
CLIENTS = ClusterSpec({TaskType.WORKER: ("a:1", "a:2"), TaskType.PS: ("a:3",)})
PS = ClusterSpec({TaskType.CHIEF: ("a:1",), TaskType.WORKER: ("a:2", "a:3"), TaskType.PS: ("a:4",)})


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""
    now = [100.0]
    monkeypatch.setattr(chief_link, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def make_link(monkeypatch):
    monkeypatch.setattr(chief_link, "later", lambda delay_s, action: None)
    config = kdist_config.load({"cluster": {"start_timeout_s": 20}})

    def make(traits=None, spec=PS, **more):
        told = []

        def tell(*event):
            told.append(event)

        made = ChiefLink(config, {}, traits or traits_of("ps"), spec, tell, tell, **more)
        made.told = told
        return made

    return make


@pytest.fixture
def link(make_link):
    return make_link()


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


def test_an_update_of_all_workers_waits_for_each_of_them(make_link, clock):
    link = make_link(traits_of("ps", "in_graph", "sync"))
    link._lose(WORKERS[1])
    clock[0] += 19
    link.check()
    clock[0] += 2
    with pytest.raises(PeerLostError, match=r"20 s \(cluster.*the 2 workers .* worker-1"):
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


@pytest.mark.parametrize("ends_frozen", [True, False])
def test_a_frozen_worker_ends_training_unless_somebody_kills_it(make_link, clock, ends_frozen):
    link = make_link(ends_frozen=ends_frozen)
    peers = link._control._roster.peers
    for peer in (peer for peer in peers if peer.task == WORKERS[0]):
        peer.is_lost = peer.is_silent = True
    link._lose(WORKERS[0])
    if ends_frozen:
        link.check()
    else:
        with pytest.raises(PeerLostError, match=r"worker-0 .*no sign of life for 30 s \(cluster\."):
            link.check()


class Control:
    """A control channel on which one worker is lost, and the others have finished."""

    def __init__(self, lost, starting=()):
        self.missing_peers = ()
        self.starting_peers = starting
        self.awaited = []
        self.exit_code = None
        self._lost = lost

    def wait_finished(self, deadline_s, tasks):
        self.awaited.append(list(tasks))
        if self._lost in tasks:
            self.missing_peers = (self._lost,)
            raise PeerLostError(f"Lost before the end: {self._lost}.")

    def done(self, exit_code):
        self.exit_code = exit_code


def test_who_is_lost_after_the_end_takes_nothing_along(make_link, capsys):
    three = ClusterSpec({TaskType.WORKER: ("a:1", "a:2", "a:3")})
    link = make_link(traits_of("multiworker"), three)
    lost, other = (Task(TaskType.WORKER, index) for index in (1, 2))
    link._control = control = Control(lost)
    link.leave(0, has_ended=True)
    assert control.awaited == [[lost, other], [other]]
    assert control.exit_code == 0
    assert capsys.readouterr().err == "Lost before the end: worker-1. The run was over by then.\n"


def test_who_starts_again_when_the_run_is_over_is_not_waited_for(make_link, capsys):
    link = make_link(traits_of("ps", "between_graph"), CLIENTS)
    link._control = control = Control(None, starting=(WORKERS[1],))
    link.leave(0, has_ended=True)
    assert (control.awaited, control.exit_code) == ([], 0)
    assert capsys.readouterr().err == ""


def test_a_server_that_is_lost_after_the_end_lets_the_others_go(make_link, clock, capsys):
    class Hangs(Control):
        def wait_finished(self, deadline_s, tasks):
            clock[0] += deadline_s
            self.missing_peers = (SERVER,) if clock[0] > 105 else ()
            raise TaskTimeoutError("not in time")

    link = make_link(traits_of("ps", "between_graph"), CLIENTS)
    link._control = control = Hangs(None)
    link.leave(0, has_ended=True)
    assert (clock[0], control.exit_code) == (106, 0)
    said = "worker-1 cannot end: ps-0 was lost. The run was over by then.\n"
    assert capsys.readouterr().err == said
