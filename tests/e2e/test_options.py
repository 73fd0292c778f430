"""Settings that only show in real tasks: determinism, collectives, the plan with its model."""

import numpy as np
import pytest

from .kit import Run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SMALL = ("data=synthetic", "data.num_examples=500", "epochs=1")


def test_the_plan_shows_the_model_and_where_it_lives(kdist, tmp_path):
    code, stdout, stderr = kdist("strategy=ps", "command=plan", "plan.model=true")
    assert (code, stderr) == (0, "")
    assert "Mode: ps (in-graph, async)" in stdout
    assert "26,122 parameters, 104,488 bytes" in stdout
    told = [line.split() for line in stdout.splitlines() if "KiB in" in line]
    assert [words[0] for words in told] == ["ps-0:", "ps-1:"]
    assert sum(float(words[1]) * 1024 for words in told) == pytest.approx(104_488, rel=0.002)
    assert not (tmp_path / "outputs").exists()


def test_a_deterministic_run_repeats_itself(kdist, tmp_path):
    metrics = []
    for name in ("one", "two"):
        code, *_ = kdist(*SMALL, "strategy=single", "deterministic=true", f"hydra.run.dir={name}")
        assert code == 0
        metrics.append(Run(tmp_path / name).result["metrics"])
    assert metrics[0] == metrics[1]


def test_workers_add_up_in_a_ring(kdist, tmp_path):
    argv = ("strategy=multiworker", "cluster.workers=2", "strategy.collective=ring")
    code, stdout, stderr = kdist(*SMALL, *argv, "hydra.run.dir=run")
    assert (code, stderr) == (0, ""), stdout
    result = Run(tmp_path / "run").result
    assert (result["status"], result["examples_seen"]) == ("completed", 400)
    assert np.isfinite(result["metrics"]["val_loss"])


def test_predictions_take_the_place_of_older_ones_and_leave_nothing_half_made(kdist, tmp_path):
    np.savez("new.npz", x=np.zeros((7, 64), "float32"))
    assert kdist(*SMALL, "strategy=single", "hydra.run.dir=run")[0] == 0
    for _ in range(2):
        code, _, stderr = kdist("command=predict", "run=run", "data.path=new.npz")
        assert (code, stderr) == (0, "")
    (tmp_path / "run" / "predictions.npz").unlink()
    (tmp_path / "run" / "predictions.npz").mkdir()
    code, _, stderr = kdist("command=predict", "run=run", "data.path=new.npz")
    assert (code, len(stderr.splitlines())) == (2, 1)
    assert "predictions.npz cannot be written" in stderr
    assert [p.name for p in (tmp_path / "run").glob(".*") if p.name != ".lock"] == []
