"""Callbacks that stop and write, on clusters: they run on the chief, and all tasks follow."""

import keras
import numpy as np
import pytest

from .kit import Run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SMALL = ("data=synthetic", "data.num_examples=1000", "hydra.run.dir=run", "model.dropout=0")
CLUSTERS = {
    "multiworker": ("strategy=multiworker", "cluster.workers=2"),
    "ps": ("strategy=ps", "cluster.workers=2", "cluster.ps=1"),
}


@pytest.mark.parametrize("strategy", CLUSTERS)
def test_early_stopping_stops_all_at_one_epoch(kdist, strategy, tmp_path):
    stop = "++callbacks.stop._target_=keras.callbacks.EarlyStopping"
    told = {"monitor": "loss", "min_delta": 100, "patience": 2, "restore_best_weights": "true"}
    options = [f"++callbacks.stop.{name}={value}" for name, value in told.items()]
    code, stdout, _ = kdist(*CLUSTERS[strategy], *SMALL, "epochs=30", stop, *options)
    result = Run(tmp_path / "run").result
    assert (code, result["status"]) == (0, "completed"), stdout
    assert result["batches_seen"] == 3 * result["steps_per_epoch"]
    assert len(Run(tmp_path / "run").rows) == 3
    model = keras.saving.load_model(tmp_path / "run" / "model.keras")
    assert model.count_params() == 26_122
    assert "val_loss" in result["final_metrics"]  # The best weights are the first epoch's.


@pytest.mark.parametrize("strategy", CLUSTERS)
def test_weights_that_a_batch_hook_writes_reach_every_task(kdist, strategy, tmp_path):
    sets = "++callbacks.zero._target_=my_pkg.ZeroesWeights"
    code, stdout, _ = kdist(*CLUSTERS[strategy], *SMALL, "epochs=2", "data.batch_size=256", sets)
    run = Run(tmp_path / "run")
    assert code == 0, stdout
    model = keras.saving.load_model(tmp_path / "run" / "model.keras")
    assert all(np.all(weight == 0) for weight in model.get_weights())
    # All classes are as likely then: the loss of every batch but the first is that of guessing.
    assert run.result["metrics"]["val_loss"] == pytest.approx(np.log(10), abs=1e-5)
    # Under ps the second of two steps at once may see the first one's update: by Adam's rule each
    # number moves by at most the learning rate, and so does this loss.
    tolerance = 2e-3 if strategy == "ps" else 1e-5
    assert float(run.rows[-1]["loss"]) == pytest.approx(np.log(10), abs=tolerance)
