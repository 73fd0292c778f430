"""A user's own model, data, loss, metric and callback, in an oddly named folder; then again."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from .kit import Command, Run, cluster_of, leftovers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

OWN = Path(__file__).parent / "own"
FIRST = (
    "strategy=single",
    "model._target_=my_pkg.build",
    "++model.units=10",
    "data._target_=my_pkg.load",
    "++data.num_validation=197",
    "data.batch_size=50",  # 1,600 examples: no remainder; 3 workers: 17, 17 and 16 of 50.
    "loss=my_pkg.loss",
    "metrics=[accuracy,my_pkg.hits]",
    "++callbacks.note._target_=my_pkg.Note",
    "++callbacks.note.path=note.txt",
    "epochs=2",
    "hydra.run.dir=runs/first",
)
AGAIN = ("--config-dir", "runs/first", "--config-name", "config")
WEIGHTS = """
import sys
import keras, numpy as np
arrays = [keras.saving.load_model(f, compile=False).get_weights() for f in sys.argv[2:]]
np.savez(sys.argv[1], *[np.concatenate([a.ravel() for a in each]) for each in arrays])
"""


@dataclass
class Done:
    folder: Path
    first: Command
    repeated: Command
    cluster: dict

    def evidence(self):
        every = [self.first, self.repeated, *self.cluster.values()]
        return "".join(command.evidence() for command in every)


@pytest.fixture(scope="module")
def done(shared):
    folder = shared.folder / "söme földer, with = signs"
    folder.mkdir()
    shutil.copy(OWN / "my_pkg.py", folder)
    first = shared.run(*FIRST, cwd=folder)
    assert first.code == 0, first.evidence()
    note = (folder / "note.txt").read_text()
    again = (*AGAIN, "strategy.name=multiworker", "callbacks=null")
    repeated = shared.run(
        *again, "cluster.workers=2", "hydra.run.dir=runs/multiworker 2", cwd=folder
    )
    cluster = shared.start_cluster(
        cluster_of(worker=3),
        *again,
        "hydra.run.dir=runs/multiworker 3",
        order=["worker-2", "worker-0", "worker-1"],
        cwd=folder,
    )
    for command in cluster.values():
        command.wait(90)
    (folder / "note.txt").write_text(note)
    return Done(folder, first, repeated, cluster)


def run_of(done, name):
    return Run(done.folder / "runs" / name)


def test_all_end_well_and_leave_no_process(done):
    assert {c.code for c in (done.first, done.repeated, *done.cluster.values())} == {0}
    assert leftovers(done.first, done.repeated, *done.cluster.values()) == {}


def test_everything_of_the_user_was_used(done):
    result = run_of(done, "first").result
    assert sorted(result["metrics"]) == [
        *("accuracy", "hits", "loss", "val_accuracy", "val_hits", "val_loss"),
    ]
    assert (result["examples_seen"], result["batches_seen"]) == (3200, 64)
    assert result["metrics"]["hits"] == pytest.approx(result["metrics"]["accuracy"])


def test_the_callback_saw_every_epoch_and_the_weights(done):
    names = "['accuracy', 'hits', 'loss', 'val_accuracy', 'val_hits', 'val_loss']"
    lines = (done.folder / "note.txt").read_text().splitlines()
    assert lines == [f"0 {names} True", f"1 {names} True"]


@pytest.mark.parametrize("name", ["multiworker 2", "multiworker 3"])
def test_workers_that_add_up_learn_what_one_process_learns(done, name):
    first, other = run_of(done, "first").result, run_of(done, name).result
    assert other["num_replicas"] == int(name[-1])
    assert other["metrics"] == pytest.approx(first["metrics"], abs=1e-5)
    assert other["examples_seen"] == 3200


def test_their_weights_are_the_same(done, tmp_path):
    runs = [run_of(done, name).path for name in ("first", "multiworker 2", "multiworker 3")]
    models = [str(run / "model.keras") for run in runs]
    subprocess.run(
        [sys.executable, "-c", WEIGHTS, str(tmp_path / "w.npz"), *models],
        check=True,
        capture_output=True,
        timeout=90,
    )
    with np.load(tmp_path / "w.npz") as weights:
        for name in ("arr_1", "arr_2"):
            np.testing.assert_allclose(weights[name], weights["arr_0"], rtol=0, atol=1e-5)


def test_only_the_chief_of_a_cluster_makes_the_run_folder(done):
    runs = [path.name for path in (done.folder / "runs").iterdir()]
    assert sorted(runs) == ["first", "multiworker 2", "multiworker 3"]
    assert not (done.folder / "outputs").exists()
    said = {name: command.stdout for name, command in done.cluster.items()}
    assert "epoch 2/2" in said["worker-0"]
    assert (said["worker-1"], said["worker-2"]) == ("", "")


def test_a_cluster_of_single_commands_leaves_events_too(done):
    events = run_of(done, "multiworker 3").events
    assert [e["event"] for e in events].count("epoch_ended") == 2
    assert events[-1]["event"] == "run_ended"


def test_a_finished_run_says_so_and_never_refuses_its_folder_untouched(done, bench):
    before = run_of(done, "first").result
    again = bench.run(*FIRST, cwd=done.folder)
    assert again.code == 0
    assert "is finished" in again.stdout
    never = bench.run(*FIRST, "resume=never", cwd=done.folder)
    assert never.code == 2
    assert "already holds a run" in never.stderr
    assert len(never.stderr.splitlines()) == 1
    assert run_of(done, "first").result == before


def test_evaluate_says_what_training_said(done, bench):
    command = bench.run("command=evaluate", "run=runs/first", cwd=done.folder)
    assert (command.code, command.stderr) == (0, "")
    metrics = run_of(done, "first").result["metrics"]
    found = json.loads((run_of(done, "first").path / "evaluation.json").read_text())
    assert found == pytest.approx({k: v for k, v in metrics.items() if k[:4] == "val_"}, abs=1e-5)


def test_predict_writes_one_output_a_row(done, bench, tmp_path):
    np.savez(tmp_path / "new.npz", x=(load_digits().data[:70] / 16).astype("float32"))
    command = bench.run(
        "command=predict", "run=runs/first", f"data.path={tmp_path / 'new.npz'}", cwd=done.folder
    )
    assert (command.code, command.stderr) == (0, "")
    with np.load(run_of(done, "first").path / "predictions.npz") as found:
        assert found["predictions"].shape == (70, 10)
        np.testing.assert_allclose(found["predictions"].sum(axis=1), 1, atol=1e-5)


SERVE = """
import sys
sys.modules["keras"] = sys.modules["kdist"] = None
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
name = list(served.structured_input_signature[1])[0]
print(next(iter(served(**{name: tf.zeros((3, 64))}).values())).shape)
"""


def test_plain_tensorflow_serves_what_was_exported(done, bench):
    command = bench.run("command=export", "run=runs/first", cwd=done.folder)
    assert (command.code, command.stderr) == (0, "")
    said = subprocess.run(
        [sys.executable, "-c", SERVE, str(run_of(done, "first").path / "export")],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert said.stdout.strip() == "(3, 10)", said.stderr


def test_a_run_starts_from_another(done, bench):
    command = bench.run(
        *AGAIN, "init_from=runs/first", "callbacks=null", "limit_batches=3", cwd=done.folder
    )
    assert command.code == 0
    [folder] = (done.folder / "outputs").glob("*/*")
    result = Run(folder).result
    shutil.rmtree(done.folder / "outputs")
    assert (result["batches_seen"], result["steps_per_epoch"]) == (6, 3)
    assert result["metrics"]["loss"] < run_of(done, "first").result["metrics"]["loss"] * 1.2
