"""Between-graph parameter servers from the command line: worker 0 leads, nobody is left behind."""

import os
import signal

import pytest

from .kit import Run, cluster_of, leftovers, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

MODE = ("strategy=ps", "strategy.replication=between_graph", "hydra.run.dir=run")


def test_digits(bench):
    command = bench.run(*MODE, "cluster.workers=2", "cluster.ps=2", "epochs=12")
    assert command.code == 0, command.evidence()
    assert leftovers(command) == {}
    result = Run(bench.folder / "run").result
    assert (result["replication"], result["update"]) == ("between_graph", "async")
    assert result["cluster"] == {"chief": 0, "worker": 2, "ps": 2, "evaluator": 0}
    assert result["metrics"]["val_accuracy"] >= 0.95
    assert result["batches_seen"] == result["global_step"] == 12 * 23
    assert result["examples_seen"] == 12 * 1437


@pytest.mark.slow
def test_killed_worker(bench):
    """Its steps are computed by others; it is started again, and takes part again."""
    data = ("data=synthetic", "data.num_examples=2000", "epochs=60", "checkpoint.every_epochs=20")
    command = bench.start(*MODE, *data, "cluster.workers=2", "cluster.ps=1")
    run = Run(bench.folder / "run")
    wait_until(lambda: run.num_events("epoch_ended") >= 3, 90, "3 epochs")
    os.kill(command.tasks(run.path)["worker-1"], signal.SIGKILL)
    command.wait(90)
    assert command.code == 0, command.evidence()
    assert leftovers(command) == {}
    result = run.result
    assert result["batches_seen"] == result["global_step"] == 60 * result["steps_per_epoch"]
    assert result["examples_seen"] == 60 * 1600
    assert result["workers_lost"] == 1


@pytest.mark.parametrize("update", [pytest.param("async", marks=pytest.mark.slow), "sync"])
def test_tasks_that_somebody_else_started(bench, update):
    """A cluster without a chief, by TF_CONFIG; in a synchronous batch all workers have a share."""
    commands = bench.start_cluster(
        cluster_of(worker=2, ps=1),
        *MODE,
        f"strategy.update={update}",
        "epochs=2",
        tasks=["ps-0", "worker-1", "worker-0"],
    )
    for command in commands.values():
        command.wait(90)
    assert {c.code for c in commands.values()} == {0}, commands["worker-0"].evidence()
    assert leftovers(*commands.values()) == {}
    assert [commands[name].stdout for name in ("ps-0", "worker-1")] == ["", ""]
    result = Run(bench.folder / "run").result
    assert (result["update"], result["batches_seen"]) == (update, 46)
    assert result["examples_seen"] == 2 * 1437
