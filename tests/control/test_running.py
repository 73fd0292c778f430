import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kdist.cluster.control import ChiefEndedError
from kdist.cluster.task import TaskType
from kdist.errors import PeerLostError, TaskTimeoutError, TrainingError, exit_code_of

from .conftest import Call, task

PROGRAM = Path(__file__).with_name("task_program.py")


class Program:
    """A task as a process; its lines can be waited for."""

    def __init__(self, spec, name, **options):
        options = {"lost_timeout_s": 20.0, **options, "task": name, "addresses": spec.as_dict()}
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(options)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd(), "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        self._lines = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def line(self, start, deadline_s=30.0):
        end_s = time.monotonic() + deadline_s
        while True:
            found = self._lines.get(timeout=max(0.0, end_s - time.monotonic()))
            if found.startswith(start):
                return found

    def end(self, deadline_s=20.0):
        return self.process.wait(deadline_s)

    def kill(self):
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def program():
    started = []

    def start(spec, name, **options):
        started.append(Program(spec, name, **options))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_decisions_arrive_in_order_at_everyone(cluster_of):
    chief, peers = cluster_of(worker=2, ps=1).start()
    for index in range(50):
        chief.broadcast({"step": index})
    for peer in peers:
        assert [peer.receive_decision(10)["step"] for _ in range(50)] == list(range(50))


def test_a_decision_that_does_not_come_is_named(cluster_of):
    _, (peer,) = cluster_of(worker=1).start()
    with pytest.raises(TaskTimeoutError, match="a decision of chief-0"):
        peer.receive_decision(0.1)


def test_a_decision_that_is_too_long_is_refused(cluster_of):
    chief, (peer,) = cluster_of(worker=1).start()
    with pytest.raises(TrainingError, match="smaller than"):
        chief.broadcast("x" * (2 << 20))
    chief.broadcast("x" * (1 << 19))
    assert len(peer.receive_decision(10)) == 1 << 19


def test_nobody_leaves_before_the_others(cluster_of):
    chief, peers = cluster_of(worker=2, ps=1).start()
    with pytest.raises(TaskTimeoutError, match=r"worker-0.*, worker-1.*, ps-0"):
        chief.wait_finished(0.1)
    workers = [task("worker-0"), task("worker-1")]
    peers[0].finished()
    barrier = Call(chief.wait_finished, 10, workers)
    with pytest.raises(TaskTimeoutError, match=r"waiting for the end of worker-1 \(127[^,]*\)\."):
        chief.wait_finished(0.1, workers)
    peers[1].finished()
    barrier.result()


def test_the_end_reaches_everyone(cluster_of):
    chief, peers = cluster_of(worker=2, ps=1).start()
    ended = [Call(peer.wait_done) for peer in peers]
    chief.done(0)
    chief.done(1)
    assert [call.result() for call in ended] == [0, 0, 0]
    assert chief.lost_peers == ()


def test_a_task_that_waits_for_a_decision_hears_of_the_end(cluster_of):
    chief, (peer,) = cluster_of(worker=1).start()
    chief.broadcast("last")
    chief.done(1)
    assert peer.receive_decision(10) == "last"
    with pytest.raises(ChiefEndedError, match="chief-0 ended the run with exit code 1") as caught:
        peer.receive_decision(10)
    assert exit_code_of(caught.value) == 1
    assert caught.value.is_consequence


def test_a_killed_chief_is_lost_after_the_timeout_and_not_before(cluster_of, program):
    cluster = cluster_of(worker=2)
    chief = program(cluster.spec, "chief-0")
    waiting = program(cluster.spec, "worker-0", lost_timeout_s=1.5)
    blocked = program(cluster.spec, "worker-1", lost_timeout_s=1.5, is_blocked=True)
    for each in (waiting, blocked):
        each.line("go")
    start_s = time.monotonic()
    chief.kill()
    assert waiting.line("PeerLostError").startswith("PeerLostError: chief-0 vanished")
    assert 1.4 < time.monotonic() - start_s < 20
    assert blocked.line("lost").startswith("lost: chief-0 vanished")
    assert (waiting.end(), blocked.end()) == (75, 75)


def test_a_chief_that_hangs_is_lost_too(cluster_of, program):
    cluster = cluster_of(worker=1)
    chief = program(cluster.spec, "chief-0")
    peer = program(cluster.spec, "worker-0", lost_timeout_s=1.5, decides=True)
    assert peer.line("decision") == "decision: ready"
    chief.process.send_signal(signal.SIGSTOP)
    assert peer.end() == 75


def test_a_chief_that_starts_may_be_silent_for_longer(cluster_of, program):
    """TensorFlow's start blocks all threads of Python while it waits for peers."""
    cluster = cluster_of(worker=1)
    chief = program(cluster.spec, "chief-0", is_starting=True)
    peer = program(cluster.spec, "worker-0", lost_timeout_s=0.5, start_timeout_s=3)
    peer.line("go")
    chief.line("go")
    start_s = time.monotonic()
    chief.process.send_signal(signal.SIGSTOP)
    assert peer.end() == 75
    assert time.monotonic() - start_s > 2.5


def test_a_blocked_task_ends_with_the_chief(cluster_of, program):
    cluster = cluster_of(worker=1)
    chief = Call((ended := cluster.chief()).rendezvous)
    peer = program(cluster.spec, "worker-0", is_blocked=True)
    chief.result()
    peer.line("go")
    ended.done(3)
    assert peer.end() == 3


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_task_is_noticed_and_a_restarted_one_rejoins(cluster_of, program, how):
    cluster = cluster_of(worker=2)
    seen = queue.SimpleQueue()
    chief = cluster.chief(
        lost_timeout_s=2.0,
        rejoins={TaskType.WORKER},
        on_lost=lambda each: seen.put(("lost", str(each))),
        on_rejoined=lambda each: seen.put(("rejoined", str(each))),
    )
    coming = Call(chief.rendezvous)
    programs = [program(cluster.spec, f"worker-{index}", decides=True) for index in range(2)]
    coming.result()
    for each in programs:
        each.line("go")
    while not all(peer.is_ready for peer in chief._roster.peers):
        threading.Event().wait(0.02)
    programs[1].process.send_signal(how)
    assert seen.get(timeout=10) == ("lost", "worker-1")
    assert chief.lost_peers == (task("worker-1"),)
    programs[1].kill()
    programs[1] = program(cluster.spec, "worker-1", decides=True)
    assert seen.get(timeout=20) == ("rejoined", "worker-1")
    programs[1].line("go")
    chief.broadcast("on")
    for each in programs:
        assert each.line("decision") == "decision: on"
    chief.wait_finished(10)
    chief.done(0)
    assert [each.end() for each in programs] == [0, 0]
    assert chief.lost_peers == (task("worker-1"),)


def test_a_loss_ends_the_wait_for_the_others(cluster_of, program):
    cluster = cluster_of(worker=1)
    chief = cluster.chief()
    coming = Call(chief.rendezvous)
    peer = program(cluster.spec, "worker-0", decides=True)
    coming.result()
    barrier = Call(chief.wait_finished, 20)
    peer.line("go")
    peer.kill()
    with pytest.raises(PeerLostError, match=r"worker-0 \(127.0.0.1:\d+: .+\)"):
        barrier.result()


@pytest.mark.cluster
@pytest.mark.slow
def test_tensorflow_serves_on_the_same_port_beside_the_channel(cluster_of, program):
    cluster = cluster_of(worker=1)
    chief = cluster.chief(rejoins={TaskType.WORKER})
    coming = Call(chief.rendezvous)
    first = program(cluster.spec, "worker-0", serves_tensorflow=True, decides=True)
    coming.result(60)
    first.line("go", 60)
    first.kill()
    again = program(cluster.spec, "worker-0", serves_tensorflow=True, decides=True)
    again.line("go", 60)  # Called again on the port that TensorFlow had.
    chief.broadcast("on")
    assert again.line("decision") == "decision: on"
    chief.done(0)
    assert again.end() == 0


def test_a_decision_is_sent_when_broadcast_returns(cluster_of):
    """TensorFlow's start keeps Python's lock: no other thread of the chief could send it then."""
    chief, [peer] = cluster_of(worker=1).start()
    [known] = chief._roster.peers
    send = known.wire.send

    def send_late(message):
        threading.Event().wait(0.2)
        send(message)
        sent.append(message["kind"])

    sent, known.wire.send = [], send_late
    chief.broadcast("on")
    assert "decision" in sent
    assert peer.receive_decision(10) == "on"
