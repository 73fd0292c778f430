import re
import socket
import threading

import pytest

from kdist.errors import ConfigError, EnvironmentFault, KdistError, TaskTimeoutError, exit_code_of

from .conftest import CONFIG, Call, make_spec, task


@pytest.mark.parametrize("is_chief_first", [True, False])
def test_start_order_does_not_matter(cluster_of, is_chief_first):
    cluster = cluster_of(worker=2, ps=1)
    chief, peers = cluster.chief(), cluster.peers()
    order = [chief, *peers] if is_chief_first else [*peers, chief]
    calls = [Call(order[0].rendezvous)]
    while not cluster.lines:  # It says so once it waits.
        threading.Event().wait(0.02)
    calls += [Call(end.rendezvous) for end in order[1:]]
    for call in calls:
        call.result()


def test_a_single_task_waits_for_nobody(cluster_of):
    chief = cluster_of().chief()
    chief.rendezvous()
    chief.broadcast({"stop": True})
    chief.wait_finished(0.1)
    chief.done(0)
    assert chief.lost_peers == ()


def test_worker_zero_is_chief_where_none_is_listed(cluster_of):
    chief, peers = cluster_of(chief=0, worker=3).start()
    chief.broadcast({"stop": True})
    assert [peer.receive_decision(10) for peer in peers] == [{"stop": True}] * 2


def test_all_ports_are_free_for_tensorflow_after_go(cluster_of):
    cluster = cluster_of(worker=1, ps=1)
    chief, peers = cluster.start()
    for each in cluster.spec.tasks():
        host, _, port = cluster.spec.address(each).rpartition(":")
        socket.create_server((host, int(port))).close()
    chief.done(0)
    assert [peer.wait_done() for peer in peers] == [0, 0]


def test_who_is_missing_is_named_on_all_sides(cluster_of):
    cluster = cluster_of(worker=2)
    chief, present = cluster.chief(start_timeout_s=2), cluster.peer(task("worker-0"))
    calls = [Call(chief.rendezvous), Call(present.rendezvous)]
    address = cluster.spec.address(task("worker-1"))
    for call in calls:
        with pytest.raises(TaskTimeoutError, match=rf"worker-1 \({address}: .*refused") as caught:
            call.result()
        assert exit_code_of(caught.value) == 1
        assert "worker-0" not in str(caught.value)
    waiting = re.compile(rf"(chief-0|worker-0): waiting for worker-1 \({address}")
    assert {found[1] for line in cluster.lines if (found := waiting.match(line))} == {
        "chief-0",
        "worker-0",
    }


class Stopped(BaseException):
    """A signal, as `StoppedEarly` tells of one."""

    exit_code = 143


@pytest.mark.parametrize(("error", "exit_code"), [(Stopped(), 143), (RuntimeError(), 1)])
def test_a_chief_that_is_stopped_before_the_start_takes_its_exit_code_along(
    cluster_of, error, exit_code
):
    cluster = cluster_of(worker=2)
    chief, present = cluster.chief(), cluster.peer(task("worker-0"))

    def stop(line):
        if "worker-0" not in line:  # It has heard the chief's call.
            raise error

    chief._say = stop
    calls = [Call(chief.rendezvous), Call(present.rendezvous)]
    with pytest.raises(type(error)):
        calls[0].result()
    with pytest.raises(
        KdistError, match=r"chief-0 (was stopped|failed) before the start"
    ) as caught:
        calls[1].result()
    assert exit_code_of(caught.value) == exit_code


def test_a_peer_names_the_chief_that_never_calls(cluster_of):
    cluster = cluster_of(worker=1)
    peer = cluster.peer(task("worker-0"), start_timeout_s=0.8)
    with pytest.raises(TaskTimeoutError, match=r"waiting for chief-0 \(127.0.0.1:\d+\) to call"):
        peer.rendezvous()
    assert cluster.lines[0].startswith("worker-0: waiting for chief-0 (127.0.0.1:")


def test_a_host_name_that_does_not_resolve_is_named(cluster_of):
    cluster = cluster_of(worker=1)
    cluster.spec.addresses[task("worker-0").type] = ("no-such-host.invalid:4000",)
    with pytest.raises(TaskTimeoutError, match=r"no-such-host.invalid:4000: .*(resolve|no answer)"):
        cluster.chief(start_timeout_s=1.5).rendezvous()


def test_different_configurations_are_named_on_both_sides(cluster_of):
    cluster = cluster_of(worker=2)
    other = {**CONFIG, "optimizer.learning_rate": 0.5, "epochs": 3}
    ends = [
        cluster.chief(),
        cluster.peer(task("worker-0")),
        cluster.peer(task("worker-1"), config=other),
    ]
    for call in [Call(end.rendezvous) for end in ends]:
        with pytest.raises(ConfigError) as caught:
            call.result()
        message = str(caught.value)
        assert exit_code_of(caught.value) == 2
        assert "epochs (chief-0 has no such key, worker-1 has 3)" in message
        assert "optimizer.learning_rate (chief-0 has 0.01, worker-1 has 0.5)" in message
        assert "seed" not in message and "worker-0" not in message


def test_a_different_cluster_is_named(cluster_of):
    cluster = cluster_of(worker=1)
    ends = [cluster.chief()]
    other = cluster_of(worker=1)
    other.spec.addresses[task("worker-0").type] = cluster.spec.addresses[task("worker-0").type]
    ends.append(other.peer(task("worker-0")))
    for call in [Call(end.rendezvous) for end in ends]:
        with pytest.raises(ConfigError, match="TF_CONFIG cluster"):
            call.result()


def test_a_task_with_the_wrong_index_is_named(cluster_of):
    cluster = cluster_of(worker=2)
    swapped = cluster_of(worker=2)
    swapped.spec.addresses[task("worker-0").type] = tuple(
        reversed(cluster.spec.addresses[task("worker-0").type])
    )
    chief = Call(cluster.chief().rendezvous)
    peer = Call(swapped.peer(task("worker-1")).rendezvous)
    address = cluster.spec.address(task("worker-0"))
    for call in (chief, peer):
        with pytest.raises(ConfigError, match=f"{address} should be worker-0. Received: worker-1"):
            call.result()


@pytest.mark.parametrize("name", ["chief-0", "worker-0"])
def test_a_port_in_use_is_named(cluster_of, name):
    cluster = cluster_of(worker=1)
    address = cluster.spec.address(task(name))
    host, _, port = address.rpartition(":")
    end = cluster.chief() if name == "chief-0" else cluster.peer(task(name))
    with socket.create_server((host, int(port))):
        with pytest.raises(EnvironmentFault, match=f"{name}.*in use.*{address}") as caught:
            Call(end.rendezvous).result()
        assert exit_code_of(caught.value) == 2


def test_another_program_on_the_port_is_no_task(cluster_of):
    cluster = cluster_of(worker=1)
    host, _, port = cluster.spec.address(task("worker-0")).rpartition(":")
    with socket.create_server((host, int(port))) as server:

        def serve():
            while True:
                accepted, _ = server.accept()
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        Call(serve)
        with pytest.raises(TaskTimeoutError, match=r"worker-0 \(.*is no kdist task"):
            cluster.chief(start_timeout_s=1.0).rendezvous()


def test_strangers_on_the_port_disturb_nobody(cluster_of):
    cluster = cluster_of(worker=1)
    peer = Call(cluster.peer(task("worker-0")).rendezvous)
    host, _, port = cluster.spec.address(task("worker-0")).rpartition(":")
    while not cluster.lines:
        threading.Event().wait(0.02)
    silent = socket.create_connection((host, int(port)))
    rude = socket.create_connection((host, int(port)))
    rude.sendall(b"\x00\xff" * 100 + b"\n" + b"x" * (3 << 20))
    cluster.chief().rendezvous()
    peer.result()
    silent.close(), rude.close()


def test_keys_must_be_the_same(cluster_of):
    cluster = cluster_of(worker=1)
    ends = [cluster.chief(key="a", start_timeout_s=1.5)]
    ends.append(cluster.peer(task("worker-0"), key="b", start_timeout_s=1.5))
    for call in [Call(end.rendezvous) for end in ends]:
        with pytest.raises(TaskTimeoutError, match=r"another cluster\.key"):
            call.result()


def test_with_one_key_all_is_well(cluster_of):
    chief, (peer,) = cluster_of(worker=1).start(chief_more={"key": "a"}, key="a")
    chief.broadcast([1, 2])
    chief.broadcast("x")
    assert [peer.receive_decision(10), peer.receive_decision(10)] == [[1, 2], "x"]


def test_a_chief_that_starts_again_calls_again(cluster_of):
    cluster = cluster_of(worker=2)
    peer = Call(cluster.peer(task("worker-0")).rendezvous)
    with pytest.raises(TaskTimeoutError):
        cluster.chief(start_timeout_s=0.6).rendezvous()
    with pytest.raises(TaskTimeoutError):  # Told by the chief; its supervisor starts it again.
        peer.result()
    calls = [Call(end.rendezvous) for end in (cluster.chief(), *cluster.peers())]
    for call in calls:
        call.result()


def test_specs_of_this_test_kit_use_distinct_ports():
    spec = make_spec(worker=3, ps=2)
    assert len({spec.address(each) for each in spec.tasks()}) == 6
