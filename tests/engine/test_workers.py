"""Workers that add up their gradients equal plain Keras, whatever the batch sizes."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from .cases import CASES
from .harness import fit

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(170)]

PROGRAM = Path(__file__).parent / "programs" / "train_as_worker.py"
ROOT = Path(__file__).parents[2]
DEADLINE_S = 150
# Each of these stresses something else; together with mirrored every case has several replicas.
OF_TWO = ["l2_last_batch_of_one", "masked_steps_weighted_mean", "global_clipnorm", "metrics"]
OTHERS_OF_TWO = ["several_outputs", "average_overwrites", "own_compute_loss", "embedding_jit"]
OF_THREE = [
    *("fewer_rows_than_replicas_conv", "sample_weights", "accumulation", "reduction_sum"),
    *("attention", "constraints", "class_weights", "mixed_float16", "subclassed"),
]


def train_on_workers(num_workers, names, folder):
    """Return what worker 0 found; fails, with all logs, if one of them ends early or is late."""
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(num_workers)]
    addresses = json.dumps([f"127.0.0.1:{held.getsockname()[1]}" for held in with_ports])
    for held in with_ports:
        held.close()
    file, end_s, processes = folder / "found.npz", time.monotonic() + DEADLINE_S, []
    try:
        for index in range(num_workers):
            with (folder / f"worker-{index}.log").open("w") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, PROGRAM, addresses, str(index), file, *names],
                        cwd=ROOT,
                        env={**os.environ, "PYTHONPATH": str(ROOT)},
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=log,
                    )
                )
        while not file.exists():
            ended = [process.poll() for process in processes]
            if any(code is not None for code in ended) or time.monotonic() > end_s:
                logs = [path.read_text()[-4000:] for path in sorted(folder.glob("*.log"))]
                pytest.fail(f"Workers ended early or late: {ended}\n" + "\n---\n".join(logs))
            time.sleep(0.05)
        with np.load(file) as found:
            return dict(found)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate(timeout=10)


@pytest.mark.parametrize(
    ("num_workers", "names"),
    [
        pytest.param(2, OF_TWO, id="2"),
        pytest.param(2, OTHERS_OF_TWO, id="2, others", marks=pytest.mark.slow),
        pytest.param(3, OF_THREE, id="3", marks=pytest.mark.slow),
    ],
)
def test_workers_equal_plain_keras(num_workers, names, tmp_path):
    found = train_on_workers(num_workers, names, tmp_path)
    for name in names:
        case = CASES[name]
        reference = fit(
            case.build, case.data, batch_size=case.batch_size, class_weight=case.class_weight
        )
        expected = {f"weight{i}": value for i, value in enumerate(reference.weights)}
        expected |= {key: np.ravel(values) for key, values in reference.history.items()}
        mine = {k.partition("/")[2]: v for k, v in found.items() if k.partition("/")[0] == name}
        assert sorted(mine) == sorted(expected), name
        for key, values in expected.items():
            np.testing.assert_allclose(
                mine[key], values, atol=case.tolerance, rtol=case.tolerance, err_msg=f"{name} {key}"
            )
