"""The default experiment under every strategy, and all that a run leaves."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml

from kdist.datasets import digits

from .kit import Command, Run, leftovers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

STRATEGIES = {
    "chosen by kdist": (),
    "mirrored": ("+strategy=mirrored", "strategy.devices=2"),
    "multiworker": ("strategy=multiworker", "cluster.workers=2"),
    "ps": ("+strategy=ps", "cluster.workers=2", "cluster.ps=2"),
}
CLUSTERS = {
    "chosen by kdist": {"chief": 1, "worker": 0, "ps": 0, "evaluator": 0},
    "mirrored": {"chief": 1, "worker": 0, "ps": 0, "evaluator": 0},
    "multiworker": {"chief": 0, "worker": 2, "ps": 0, "evaluator": 0},
    "ps": {"chief": 1, "worker": 2, "ps": 2, "evaluator": 0},
}
KEYS = [
    *("status", "error", "strategy", "replication", "update", "cluster", "num_replicas"),
    *("global_batch_size", "epochs", "steps_per_epoch", "batches_seen", "global_step"),
    *("examples_seen", "metrics", "best", "seconds", "steps_per_second", "examples_per_second"),
    *("resumed_from_step", "restarts", "workers_lost", "warnings", "run_dir", "versions"),
]
# What parameter servers add.
PS_KEYS = ["stale_gradients_dropped", "staleness", "contributions"]
PLAIN_KERAS = """
import json, sys
sys.modules["kdist"] = None
import keras, numpy as np
data = np.load(sys.argv[1])
for path in sys.argv[2:]:
    model = keras.saving.load_model(path)
    found = model.evaluate(data["x"], data["y"], verbose=0, return_dict=True)
    iterations = int(model.optimizer.iterations.numpy())
    print(json.dumps({**found, "iterations": iterations}))
"""


@dataclass
class Done:
    name: str
    command: Command
    run: Run
    left: dict

    def evidence(self):
        return self.command.evidence() + self.run.evidence()


@pytest.fixture(scope="module", params=list(STRATEGIES))
def done(request, shared):
    cwd = shared.folder / request.param
    cwd.mkdir()
    command = shared.run(*STRATEGIES[request.param], cwd=cwd)
    left = leftovers(command)
    folders = list(cwd.glob("outputs/*/*"))
    assert len(folders) == 1, command.evidence()
    return Done(request.param, command, Run(folders[0]), left)


def test_it_ends_by_itself_with_code_0_and_leaves_no_process(done):
    assert (done.command.code, done.left) == (0, {})


def test_it_learns(done):
    assert done.run.result["metrics"]["val_accuracy"] >= 0.95


def test_nothing_is_said_but_the_report(done):
    assert done.command.stderr == ""
    assert not [line for line in done.command.stdout.splitlines() if "cuInit" in line]


def test_the_strategy_is_named_with_its_reason(done):
    strategy = done.run.result["strategy"]
    assert strategy in done.command.stdout
    assert " why " in done.command.stdout


def test_the_result_holds_exactly_the_keys_of_the_contract(done):
    assert list(done.run.result) == KEYS + (PS_KEYS if done.name == "ps" else [])
    assert list(done.run.result["seconds"]) == ["total", "startup", "train"]
    assert sorted(done.run.result["best"]) == ["checkpoint", "epoch", "monitor", "value"]
    assert sorted(done.run.result["versions"]) == ["kdist", "keras", "tensorflow"]


def test_counts_are_exact(done):
    result = done.run.result
    assert (result["status"], result["error"]) == ("completed", None)
    assert result["steps_per_epoch"] == 23
    assert result["batches_seen"] == result["global_step"] == 20 * 23
    assert result["examples_seen"] == 20 * 1437
    assert result["cluster"] == CLUSTERS[done.name]
    assert result["num_replicas"] == (1 if done.name == "chosen by kdist" else 2)
    assert (result["restarts"], result["workers_lost"]) == (0, 0)


def test_times_are_measured(done):
    seconds = done.run.result["seconds"]
    assert 0 < seconds["train"] < seconds["total"] <= done.command.seconds
    assert 0 < seconds["startup"] < seconds["total"]
    assert done.run.result["steps_per_second"] > 0


def test_metrics_have_a_row_for_each_epoch(done):
    rows = done.run.rows
    assert list(rows[0]) == [
        *("epoch", "global_step", "seconds", "examples", "loss", "accuracy"),
        *("val_loss", "val_accuracy", "learning_rate"),
    ]
    assert [int(row["epoch"]) for row in rows] == list(range(1, 21))
    assert [int(row["global_step"]) for row in rows] == [23 * n for n in range(1, 21)]
    assert {int(row["examples"]) for row in rows} == {1437}
    last = {name: float(rows[-1][name]) for name in done.run.result["metrics"]}
    assert last == pytest.approx(done.run.result["metrics"])


def test_every_task_has_a_log_and_its_events(done):
    tasks = [f"{t}-{i}" for t, num in done.run.result["cluster"].items() for i in range(num)]
    assert sorted(log.stem for log in (done.run.path / "logs").iterdir()) == sorted(tasks)
    for event in ("task_started", "task_ready", "task_ended"):
        told = [e["task"] for e in done.run.events if e["event"] == event]
        assert sorted(told) == sorted(tasks), event
    assert done.run.num_events("epoch_ended") == 20
    assert done.run.num_events("run_ended") == 1
    assert done.run.num_events("task_lost") == 0


def test_the_folder_is_complete_and_holds_nothing_half_made(done):
    names = {path.name for path in done.run.path.iterdir()}
    assert names - {".lock"} == {
        *("checkpoints", "config.yaml", "curves.png", "events.jsonl", "logs", "metrics.csv"),
        *("model.keras", "result.json", "tensorboard"),
        *(["placement.png"] if done.name == "ps" else []),
    }
    newest = {done.run.path / "checkpoints" / f"step-{23 * n:09}" for n in (18, 19, 20)}
    best = Path(done.run.result["best"]["checkpoint"])
    assert set((done.run.path / "checkpoints").iterdir()) == newest | {best}
    assert yaml.safe_load((done.run.path / "config.yaml").read_text())["epochs"] == 20
    assert list((done.run.path / "tensorboard").rglob("events.out.tfevents.*"))
    assert (done.run.path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_plain_keras_opens_the_models_and_agrees(shared, tmp_path):
    x, y = digits()["validation"]
    np.savez(tmp_path / "data.npz", x=x, y=y)
    models = sorted(shared.folder.glob("*/outputs/*/*/model.keras"))
    said = subprocess.run(
        [sys.executable, "-c", PLAIN_KERAS, tmp_path / "data.npz", *models],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
        cwd=Path("/"),
    ).stdout
    lines = said.splitlines()[-len(STRATEGIES) :]
    assert len(models) == len(STRATEGIES)
    for model, line in zip(models, lines, strict=True):
        found, metrics = json.loads(line), Run(model.parent).result["metrics"]
        assert found["loss"] == pytest.approx(metrics["val_loss"], abs=1e-5), model
        assert found["accuracy"] == pytest.approx(metrics["val_accuracy"], abs=1e-5), model
        assert found["iterations"] == 460, model
