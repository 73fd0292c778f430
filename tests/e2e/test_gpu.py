"""What can only be seen with GPUs; skipped, by name, where there is none."""

import json
import subprocess
import sys

import pytest


@pytest.mark.gpu
@pytest.mark.cluster
@pytest.mark.parametrize(
    "arguments",
    [
        ["strategy=single"],
        ["strategy=mirrored"],
        ["strategy=multiworker", "cluster.workers=1"],
        ["strategy=ps", "cluster.workers=1", "cluster.ps=1"],
        ["strategy=mirrored", "strategy.collective=nccl"],
    ],
)
def test_the_default_experiment_trains_on_accelerators(tmp_path, arguments):
    command = [sys.executable, "-m", "kdist", *arguments, "epochs=10", "hydra.run.dir=run"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"]["val_accuracy"] >= 0.9
    if "ps" not in arguments[0]:
        assert "accelerator" in ended.stdout
