"""The same command as a task of a cluster that somebody else started."""

import json
import os
import re
import signal
import socket
import time

import pytest

from .kit import Run, cluster_of, leftovers, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

PS = ("strategy=ps", "epochs=2", "hydra.run.dir=run")
LONG = ("data=synthetic", "data.num_examples=2000", "epochs=2000", "hydra.run.dir=run")


def test_parameter_servers_and_workers_end_with_their_chief(bench):
    cluster = cluster_of(chief=1, worker=2, ps=1)
    others = ["ps-0", "worker-1", "worker-0"]
    commands = bench.start_cluster(cluster, *PS, tasks=others)
    chief = bench.start_cluster(cluster, *PS, tasks=["chief-0"])["chief-0"].wait(90)
    for command in commands.values():
        command.wait(10)
    assert {c.code for c in (chief, *commands.values())} == {0}
    assert leftovers(chief, *commands.values()) == {}
    assert chief.stderr == ""
    assert [path.name for path in bench.folder.iterdir() if path.is_dir()] == ["run"]
    assert [commands[name].stdout for name in others] == ["", "", ""]
    for name in others:
        told = [line for line in commands[name].stderr.splitlines() if "to call" not in line]
        kind, _, index = name.partition("-")
        address = cluster[kind][int(index)]
        assert told == [
            f"{name}: serving at {address}; waiting for chief-0 to end",
            f"{name}: ended with chief-0",
        ]
    result = Run(bench.folder / "run").result
    assert (result["batches_seen"], result["examples_seen"]) == (46, 2 * 1437)
    assert result["cluster"] == {"chief": 1, "worker": 2, "ps": 1, "evaluator": 0}


@pytest.mark.parametrize("strategy", ["ps", "multiworker"])
def test_a_chief_that_vanishes_leaves_nobody_waiting(bench, strategy):
    counts = {"chief": 1, "worker": 1, **({"ps": 1} if strategy == "ps" else {})}
    commands = bench.start_cluster(
        cluster_of(**counts), f"strategy={strategy}", *LONG, "cluster.chief_lost_timeout_s=3"
    )
    chief = commands.pop("chief-0")
    run = Run(bench.folder / "run")
    wait_until(lambda: run.num_events("epoch_ended") >= 2, 90, "2 epochs")
    os.kill(chief.process.pid, signal.SIGKILL)
    killed_s = time.monotonic()
    for name, command in commands.items():
        command.wait(20)
        assert command.code == 75, name
        assert "chief-0" in command.stderr, name
    assert time.monotonic() - killed_s < 15
    assert leftovers(*commands.values()) == {}


def test_missing_peers_are_named_until_the_deadline(bench):
    cluster = cluster_of(chief=1, worker=2)
    started = bench.start_cluster(
        cluster, "strategy=multiworker", "cluster.start_timeout_s=7", tasks=["chief-0", "worker-0"]
    )
    for name, command in started.items():
        command.wait(60)
        assert command.code == 1, name
        waiting = [line for line in command.stderr.splitlines() if "waiting for" in line]
        assert waiting, name
        assert "worker-1" in waiting[-1], name
        assert command.stderr.count("Error (") == 1
        assert "cluster.start_timeout_s" in command.stderr
        assert "Traceback" not in command.stderr and "debug=true" not in command.stderr
    assert not list(bench.folder.glob("outputs"))


def test_different_configurations_are_named_on_both_sides(bench):
    cluster = cluster_of(worker=2)
    one = bench.start_cluster(cluster, "strategy=multiworker", "epochs=3", tasks=["worker-0"])
    two = bench.start_cluster(cluster, "strategy=multiworker", "epochs=4", tasks=["worker-1"])
    for command in (*one.values(), *two.values()):
        command.wait(60)
        assert command.code == 2
        assert re.search(r"epochs.*3.*4|epochs.*4.*3", command.stderr), command.stderr
        assert len(command.stderr.splitlines()) == 1
    assert not list(bench.folder.glob("outputs"))


@pytest.mark.slow
def test_only_the_chief_needs_the_weights_to_start_from(bench):
    small = ("data=synthetic", "data.num_examples=1000", "model.dropout=0", "epochs=1")
    first = bench.run(*small, "strategy=single", "hydra.run.dir=first")
    assert first.code == 0
    elsewhere = bench.folder / "elsewhere"
    elsewhere.mkdir()
    cluster = cluster_of(worker=2)
    argv = (*small, "init_from=first", "optimizer.learning_rate=0", "hydra.run.dir=run")
    commands = bench.start_cluster(cluster, *argv, tasks=["worker-0"])
    commands |= bench.start_cluster(cluster, *argv, tasks=["worker-1"], cwd=elsewhere)
    for command in commands.values():
        assert command.wait(60).code == 0
    before, after = (Run(bench.folder / name).result["metrics"] for name in ("first", "run"))
    assert after["val_loss"] == pytest.approx(before["val_loss"], abs=1e-5)
    assert list(elsewhere.iterdir()) == []


def test_a_port_in_use_is_named(bench):
    cluster = cluster_of(worker=2)
    with socket.socket() as holder:
        host, port = cluster["worker"][0].split(":")
        holder.bind((host, int(port)))
        holder.listen()
        [command] = bench.start_cluster(
            cluster, "strategy=multiworker", tasks=["worker-0"]
        ).values()
        command.wait(60)
    assert command.code == 2
    assert f"Received: {cluster['worker'][0]}" in command.stderr
    assert len(command.stderr.splitlines()) == 1


def test_a_strategy_that_does_not_fit_is_refused_before_tensorflow(bench):
    tf_config = {"cluster": cluster_of(worker=2), "task": {"type": "worker", "index": 0}}
    program = (
        "-c",
        "import sys; from kdist.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code + 100 * ('tensorflow' in sys.modules))",
    )
    command = bench.run("strategy=ps", program=program, TF_CONFIG=json.dumps(tf_config))
    assert (command.code, len(command.stderr.splitlines())) == (2, 1)
    assert "ps" in command.stderr
