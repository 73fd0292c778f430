"""Workers that are really killed: training goes on with the others, and no count is off."""

import pytest

from tests.ps.processes import ClusterProcesses
from tests.ps.trainings import free_spec


@pytest.mark.cluster
@pytest.mark.timeout(150)
def test_killed_workers_change_nothing(tmp_path):
    """Worker 1 dies inside a dispatch of ten steps and is started again; then worker 0 does.

    Nobody is left who was there at first: who ends the training has rejoined by itself.
    """
    spec = free_spec(num_workers=2, num_ps=2)
    outcome = ClusterProcesses(spec, tmp_path).run("lose_workers.py", timeout_s=120)
    assert outcome.pop("off_by") < 1e-5
    assert outcome == {
        "num_updates": [120, 120],
        "examples": 960,
        "seen": 960.0,
        "seen_once": True,
    }


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(150)
def test_killed_workers_of_synchronous_updates(tmp_path):
    """With N = M a step waits for the worker that was started again; a backup is not waited for."""
    spec = free_spec(num_workers=2, num_ps=2)
    outcome = ClusterProcesses(spec, tmp_path).run("lose_sync_workers.py", timeout_s=120)
    assert all(each.pop("off_by") < 1e-5 for each in outcome.values())
    common = {"num_updates": [60, 60], "examples": 480, "seen": 480.0, "seen_once": True}
    assert 1 in outcome["backup"].pop("workers")  # The one that was left; it may always be faster.
    assert outcome == {
        "needed": {**common, "shares": 120, "workers": [0, 1]},
        "backup": {**common, "shares": 60},
    }
