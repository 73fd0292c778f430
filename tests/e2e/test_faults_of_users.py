"""What users get wrong: one message, the right exit code, and nothing half-made.

All runs share one launcher process and its warm fork server, so each costs a second or two.
"""

import json
import os

import pytest

from kdist.records.run_folder import RunFolder

from .kit import Run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

QUICK = ("strategy=single", "data=synthetic", "epochs=1")
TWO_WORKERS = ("strategy=multiworker", "cluster.workers=2", *QUICK[1:])
SERVERS = ("strategy=ps", "cluster.workers=1", "cluster.ps=1", *QUICK[1:])
CLIENTS = (*SERVERS, "strategy.replication=between_graph")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["data=no_such_group_option"], "no_such_group_option"),
        (["strategy=sync"], "mirrored"),
        (["epochz=3"], "epochz"),
        (["epochs=many"], "epochs"),
        (["data.batch_size=0"], "data.batch_size must be at least 1"),
        (["strategy=ps", "cluster.ps=0"], "cluster.ps"),
        (["model._target_=my_pkg.no_such_function"], "my_pkg.no_such_function"),
        (["model._target_=no_such_pkg.build"], "no_such_pkg"),
        (["model._target_=my_pkg.builds_nothing"], "must return a keras.Model. Received: str"),
        (["++model.size=3"], "kdist.models.mlp does not take model.size"),
        (["model._target_=my_pkg.build", "~model.units"], "++model.units"),
        (["model._target_=my_pkg.build_for_five"], "float32(4, 64)"),
        (["model.units=lots"], "units"),
        (["data._target_=my_pkg.loads_nothing"], '"train" part'),
        (["data._target_=my_pkg.strange_labels"], "12"),
        (["data._target_=my_pkg.unequal_lengths"], "data.train"),
        (["data=npz"], "data.path"),
        (["data=npz", "data.path=missing.npz"], "missing.npz"),
        (["data=npz", "data.path=empty.npz"], "empty.npz"),
        (["data=npz", "data.path=unequal.npz"], "(5, 2), (4,)"),
        (["data=npz", "data.path=flat.npz"], "flat.npz"),
        (["data=npz", "data.path=texts.npz"], "<U1"),
        (["loss=no_such_loss"], "no_such_loss"),
        (["metrics=[no_such_metric]"], "no_such_metric"),
        (["optimizer._target_=keras.optimizers.Adan"], "keras.optimizers.Adan"),
        (["optimizer._target_=keras.layers.Dense"], "optimizer"),
        (["optimizer.learning_rate=fast"], "learning_rate"),
        (["++callbacks.mine._target_=my_pkg.loss"], "callbacks.mine"),
        (["++callbacks.mine._target_=my_pkg.loads_nothing"], "callbacks.mine"),
        (
            [
                "++callbacks.mine._target_=keras.callbacks.BackupAndRestore",
                "++callbacks.mine.backup_dir=backup",
            ],
            "BackupAndRestore",
        ),
        (["init_from=nowhere"], "init_from=nowhere"),
        (["init_from=file"], "init_from=file"),
        (["resume=nowhere"], "resume=nowhere"),
        (["resume=nowhere", "hydra.run.dir=new/run"], "resume=nowhere"),
        (["hydra.run.dir=file"], "it is a file"),
        (["command=evaluate", "run=nowhere"], "run=nowhere"),
        (["command=export"], "run=None"),
        (["class_weight={0: heavy}"], "class_weight"),
        (["strategy.collective=nccl"], "nccl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_leaves_nothing(kdist, argv, said, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    code, stdout, stderr = kdist(*QUICK, *argv)
    assert (code, stdout) == (2, "")
    assert stderr.startswith("Error")
    assert len(stderr.splitlines()) == 1
    assert said in stderr
    left = [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts]
    assert left == before


@pytest.mark.parametrize("how", [TWO_WORKERS, SERVERS, CLIENTS], ids=["sync", "ps", "between"])
@pytest.mark.parametrize("key", ["resume", "init_from"])
def test_a_cluster_that_cannot_go_on_from_there_leaves_nothing(kdist, how, key, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    argv = (f"{key}=nowhere", "hydra.run.dir=mine", "cluster.stop_grace_s=2")
    code, stdout, stderr = kdist(*how, *argv)
    assert (code, stdout, len(stderr.splitlines())) == (2, "", 1)
    assert f"{key}=nowhere" in stderr
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]
    assert not (tmp_path / "outputs").exists()


def test_more_workers_than_examples(kdist, tmp_path):
    argv = ("strategy=multiworker", "cluster.workers=4", "data._target_=my_pkg.three_examples")
    code, stdout, stderr = kdist(*argv)
    assert (code, stdout, len(stderr.splitlines())) == (2, "", 1)
    assert "3 examples in data.train, 4 workers" in stderr
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("uneven", "training rows: 64 on worker-0, 72 on worker-1"),
        ("unseeded", "checksum of the first training rows"),
    ],
)
def test_workers_that_read_other_data_are_named(kdist, function, said, tmp_path):
    argv = ("strategy=multiworker", "cluster.workers=2", "cluster.stop_grace_s=2")
    code, stdout, stderr = kdist(*argv, f"data._target_=my_pkg.{function}")
    assert (code, stdout, len(stderr.splitlines())) == (2, "", 1)
    assert "Error (worker-1): worker-1 reads other data than worker-0" in stderr
    assert said in stderr
    assert not (tmp_path / "outputs").exists()


def test_a_run_folder_in_use(kdist, tmp_path):
    with RunFolder.create(tmp_path / "taken", "") as folder:
        before = sorted(folder.path.iterdir())
        (folder.path / "config.yaml").unlink()
        code, stdout, stderr = kdist(*QUICK, "hydra.run.dir=taken")
        assert (code, stdout, len(stderr.splitlines())) == (2, "", 1)
        assert f"in use by process {os.getpid()}" in stderr
        assert {path.name for path in before} - {p.name for p in folder.path.iterdir()} == {
            "config.yaml"
        }


@pytest.mark.parametrize("how", [QUICK, TWO_WORKERS], ids=["single", "multiworker"])
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["data._target_=my_pkg.fails_to_load"],
            "my_pkg.fails_to_load raised OSError: the disk is gone",
        ),
        (
            ["model._target_=my_pkg.fails_to_build"],
            "my_pkg.fails_to_build raised RuntimeError: no such layer",
        ),
    ],
    ids=["data", "model"],
)
def test_a_function_of_the_user_that_fails_is_named(kdist, how, argv, said, tmp_path):
    code, stdout, stderr = kdist(*how, *argv)
    assert (code, stdout) == (2, "")
    assert stderr.count("Error (") == 1
    assert said in stderr
    assert "my_pkg" in stderr
    assert "Traceback" not in stderr
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("how", [QUICK, TWO_WORKERS], ids=["single", "multiworker"])
def test_a_callback_that_fails_in_the_middle(kdist, how, tmp_path):
    argv = ("++callbacks.bad._target_=my_pkg.Fails", "hydra.run.dir=run", "data.batch_size=16")
    code, stdout, stderr = kdist(*how, *argv)
    chief = "chief-0" if how is QUICK else "worker-0"
    assert code == 1
    assert f"Error ({chief}): RuntimeError: the callback broke" in stderr
    assert stderr.count("the callback broke") == 1
    assert "Traceback" not in stderr + stdout
    result = Run(tmp_path / "run").result
    assert result["status"] == "failed"
    assert result["error"]["type"] == "RuntimeError"
    assert "the callback broke" in result["error"]["message"]
    assert result["error"]["task"] == chief
    assert result["batches_seen"] == result["global_step"] == 3
    assert result["examples_seen"] == 48
    assert "Traceback" in Run(tmp_path / "run").log(chief)


def test_a_failed_run_says_who_contributed_all_of_it(kdist, tmp_path):
    sets = "++callbacks.bad._target_=my_pkg.FailsAtTheEnd"
    cluster = ("+strategy=ps", "cluster.workers=2", "cluster.ps=1")
    code, _, stderr = kdist(*cluster, sets, "limit_batches=5", "hydra.run.dir=run")
    assert code == 1
    assert "RuntimeError: the callback broke (" in stderr
    result = Run(tmp_path / "run").result
    assert (result["status"], result["batches_seen"]) == ("failed", 5)
    assert sum(result["contributions"].values()) == 5


def test_debug_shows_where_it_happened(kdist):
    code, _, stderr = kdist(*QUICK, "data._target_=my_pkg.fails_to_load", "debug=true")
    assert code == 2
    assert "my_pkg.py" in stderr
    assert "Traceback" in stderr


def test_nan_is_null_and_named(kdist, tmp_path):
    argv = ("loss=my_pkg.nan_loss", "hydra.run.dir=run", "epochs=2")
    code, _, _ = kdist(*QUICK, *argv)
    result = Run(tmp_path / "run").result  # Refuses what is no valid JSON.
    assert code == 0
    assert result["metrics"]["loss"] is None
    assert any("loss is nan" in warning for warning in result["warnings"])
    json.loads(json.dumps(result, allow_nan=False))


def test_terminate_on_nan_stops_all(kdist, tmp_path):
    argv = ("loss=my_pkg.nan_loss", "hydra.run.dir=run", "epochs=5")
    stop = "++callbacks.nan._target_=keras.callbacks.TerminateOnNaN"
    code, _, _ = kdist(*TWO_WORKERS, *argv, stop)
    result = Run(tmp_path / "run").result
    assert (code, result["status"], result["epochs"]) == (0, "completed", 5)
    assert result["batches_seen"] < 5 * result["steps_per_epoch"]
