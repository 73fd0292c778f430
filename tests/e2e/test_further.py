"""A run that has trained further than what is asked for now is left as it is."""

import json

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

QUICK = ("strategy=single", "data=synthetic", "data.num_examples=200")


def contents(folder):
    """Return the content and time of every file, but for the lock, which names its last holder."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_it_is_left_alone_and_is_nothing_to_go_on_from(kdist, tmp_path):
    run = tmp_path / "run"
    code, _, stderr = kdist(*QUICK, "epochs=3", f"hydra.run.dir={run}")
    assert code == 0, stderr
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "status": "stopped"}))
    before, batches = contents(run), result["batches_seen"]
    beyond = f"{batches} batches, where {batches // 3} were asked for (epochs=1)"

    code, stdout, stderr = kdist(*QUICK, "epochs=1", f"hydra.run.dir={run}")
    assert (code, stderr) == (0, "")
    assert stdout == (
        f"The run in {run} has already trained further: {beyond}. Nothing was done. More epochs "
        "would go on with it (epochs=...).\n"
    )
    assert contents(run) == before

    code, stdout, stderr = kdist(*QUICK, "epochs=1", "hydra.run.dir=other", f"resume={run}")
    assert (code, stdout, len(stderr.splitlines())) == (2, "", 1)
    assert f"already trained further: {beyond}. Received: resume={run}." in stderr
    assert contents(run) == before
