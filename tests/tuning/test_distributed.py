"""A distributed search without its runs: a chief serves the book, tuners ask and tell."""

import threading

import pytest

from kdist.config.schema import ClusterConfig, Config, TunerConfig
from kdist.errors import ConfigError, PeerLostError, TaskTimeoutError
from kdist.launch.ports import find_free_ports
from kdist.launch.request import Console
from kdist.tuning.book import Book
from kdist.tuning.console import SearchConsole
from kdist.tuning.journal import Journal
from kdist.tuning.loop import Stop, Wake
from kdist.tuning.objective import Objective
from kdist.tuning.remote_desk import RemoteDesk
from kdist.tuning.role import Role
from kdist.tuning.serving import serve
from kdist.tuning.trials import SearchState

from .kit import CountingOracle

SETTINGS = {"epochs": 3}
LOSS = Objective("val_loss", "min")


class Chief(threading.Thread):
    """Serves a book until the search is over."""

    def __init__(self, folder, port, *, key=None, start_timeout_s=5.0, **tuner):
        super().__init__(daemon=True)
        self.cluster = ClusterConfig(
            start_timeout_s=start_timeout_s, heartbeat_timeout_s=2.0, stop_grace_s=3.0, key=key
        )
        self.role = Role(tuner_id="chief", host="127.0.0.1", port=port)
        self.config = Config(cluster=self.cluster, tuner=TunerConfig(name="random", **tuner))
        self.journal = Journal(folder / "search.jsonl")
        self.state = SearchState()
        self.state.apply(self.journal.write("begin", settings=SETTINGS, seed=0))
        self.book = Book(self.config, LOSS, CountingOracle(), self.journal, self.state)
        self.stop = Stop(Wake())
        self.folder = folder
        self.error = None

    def run(self):
        console = SearchConsole(Console(), self.state, LOSS)
        try:
            serve(self.book, self.role, self.config, SETTINGS, self.folder, self.stop, console)
        except Exception as error:
            self.error = error

    def tuner(self, name, settings=None, **cluster):
        role = Role(tuner_id=name, host="127.0.0.1", port=self.role.port)
        fields = {"start_timeout_s": 5.0, "heartbeat_timeout_s": 2.0, "key": self.cluster.key}
        return RemoteDesk(role, settings or SETTINGS, ClusterConfig(**{**fields, **cluster}))


@pytest.fixture
def chief(tmp_path):
    """Return a function that starts a chief; all that it starts ends with the test."""
    started = []

    def start(**options):
        [port] = find_free_ports("127.0.0.1", 1)
        started.append(Chief(tmp_path, port, **options))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.stop.numbers.append(15)
        each.join(10)
        assert not each.is_alive()


@pytest.fixture
def connected(chief):
    """Return a function that connects a tuner; all hang up at the end."""
    desks = []

    def connect(to, name, **options):
        desks.append(to.tuner(name, **options))
        desks[-1].connect()
        return desks[-1]

    yield connect
    for desk in desks:
        desk.close()


def next_trial(desk):
    """Ask until there is a trial, as a tuner does."""
    for _ in range(100):
        assignment = desk.next_trial("x")
        if assignment is not None:
            return assignment
        threading.Event().wait(0.1)
    raise AssertionError("no trial came within 10 s")


def train(desk, assignment, value):
    desk.started(assignment.trial, 1, f"/runs/{assignment.trial}", 0, "x")
    verdict = desk.epoch(assignment.trial, 1, 1, {"val_loss": value, "loss": float("nan")})
    desk.ran(assignment.trial, 1)
    desk.completed(assignment.trial)
    return verdict


@pytest.mark.parametrize("key", [None, "secret"])
def test_two_tuners_share_the_trials_and_the_chief_ends(chief, connected, key):
    served = chief(max_trials=4, key=key)
    first, second = connected(served, "tuner0"), connected(served, "tuner1")
    assert first.search_dir == str(served.folder)
    for desk in (first, second, first, second):
        assert train(desk, next_trial(desk), 0.5).action == "go_on"
    assert first.next_trial("x") is None
    assert first.is_over
    first.close()
    second.close()
    served.join(10)
    assert not served.is_alive()
    assert served.error is None
    assert [trial.score for trial in served.state.trials.values()] == [0.5] * 4


def test_the_trial_of_a_dead_tuner_is_handed_out_again(chief, connected):
    served = chief(max_trials=1)
    dying, other = connected(served, "tuner0"), connected(served, "tuner1")
    lost = next_trial(dying)
    dying.started(lost.trial, 1, "/runs/0000", 0, "tuner0")
    assert other.next_trial("x") is None
    dying.close()
    again = next_trial(other)
    assert (again.trial, again.run_dir, again.attempt) == (lost.trial, "/runs/0000", 0)
    train(other, again, 0.25)
    other.close()
    served.join(10)
    assert served.error is None
    assert served.state.trials[lost.trial].score == 0.25


def test_an_objective_that_is_no_metric_ends_chief_and_tuner(chief, connected):
    served = chief()
    desk = connected(served, "tuner0")
    trial = next_trial(desk)
    desk.started(trial.trial, 1, "/runs/0000", 0, "tuner0")
    with pytest.raises(ConfigError, match="They have: loss"):
        desk.epoch(trial.trial, 1, 1, {"loss": 1.0})
    desk.close()
    served.join(10)
    assert isinstance(served.error, ConfigError)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"settings": {"epochs": 4}}, r"epochs \(3 on the chief, 4 here\)"),
        ({"name": "tuner0"}, "there is a tuner0 already"),
    ],
)
def test_a_tuner_that_does_not_belong_is_refused(chief, connected, options, said):
    served = chief()
    connected(served, "tuner0")
    desk = served.tuner(**{"name": "tuner1", **options})
    try:
        with pytest.raises(ConfigError, match=said):
            desk.connect()
    finally:
        desk.close()


def test_another_key_gets_no_answer(chief):
    served = chief(key="secret")
    desk = served.tuner("tuner0", key="other", start_timeout_s=1.0)
    try:
        with pytest.raises(TaskTimeoutError, match="waiting for the chief of the search"):
            desk.connect()
    finally:
        desk.close()


def test_a_chief_that_is_gone_is_a_lost_peer(chief, connected):
    served = chief()
    desk = connected(served, "tuner0")
    served.stop.numbers.append(15)
    served.join(10)
    with pytest.raises(PeerLostError, match="chief of the search"):
        next_trial(desk)


def test_a_chief_without_tuners_gives_up(chief):
    served = chief(start_timeout_s=0.5)
    served.join(15)
    assert isinstance(served.error, TaskTimeoutError)
    assert "waiting for a tuner to call" in str(served.error)


def test_a_tuner_without_a_chief_gives_up():
    [port] = find_free_ports("127.0.0.1", 1)
    role = Role(tuner_id="tuner0", host="127.0.0.1", port=port)
    desk = RemoteDesk(role, SETTINGS, ClusterConfig(start_timeout_s=0.5))
    try:
        with pytest.raises(TaskTimeoutError, match="KERASTUNER_TUNER_ID=chief"):
            desk.connect()
    finally:
        desk.close()
