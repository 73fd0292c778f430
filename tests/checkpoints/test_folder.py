"""Checkpoints on the disk: whole or not at all, kept by rule, and nobody else's files touched."""

import errno
import json

import numpy as np
import pytest
import tensorflow as tf

from kdist.errors import exit_code_of
from kdist.training.checkpoints import files
from kdist.training.checkpoints.find import find_checkpoint
from kdist.training.checkpoints.folder import CheckpointFolder, CheckpointWriteError, KeepRule
from kdist.training.checkpoints.format import BrokenCheckpointError, read_checkpoint

VALUES = {
    "variables/0": np.arange(12, dtype=np.float32).reshape(3, 4),
    "variables/1": np.array(7, np.int64),
    "variables/2": np.zeros([0, 3], np.float16),
    "slots/0/0": np.array([np.nan, np.inf]),
}


@pytest.fixture(params=["local", "ram"])
def folder(request, tmp_path):
    """A folder of this machine, and one that only `tf.io.gfile` knows."""
    if request.param == "local":
        return str(tmp_path / "run" / "checkpoints")
    return f"ram://{tmp_path}/checkpoints"


def save(folder, step, row=None, values=VALUES, **rule):
    state = {"position": {"batches_seen": step}, "epoch_row": row}
    return CheckpointFolder(folder, KeepRule(**rule)).save(step, values.items(), state).path


def newest(folder):
    broken = []
    found = CheckpointFolder(folder).newest_whole(broken.append)
    return (found and found.state["position"]["batches_seen"]), broken


def cut_off(path):
    if files.is_remote(path):
        with files.reading(path) as file:
            content = file.read()
        tf.io.gfile.remove(path)  # `ram://` would append.
        with files.writing(path) as file:
            file.write(content[: len(content) // 2])
    else:
        with open(path, "r+b") as file:
            file.truncate(files.size_of(path) // 2)


def test_what_is_saved_comes_back(folder):
    path = save(folder, 120)
    assert files.names(folder) == ["step-000000120"]
    found = read_checkpoint(path)
    found.verify()
    assert found.state["position"] == {"batches_seen": 120}
    assert sorted(found.entries) == sorted(VALUES)
    for name, value in VALUES.items():
        assert found.read(name).dtype == value.dtype
        np.testing.assert_array_equal(found.read(name), value)


@pytest.mark.parametrize("file", ["arrays.bin", "checkpoint.json"])
def test_a_broken_one_is_named_and_skipped(folder, file):
    save(folder, 10)
    last = save(folder, 20)
    cut_off(files.join(last, file))
    step, broken = newest(folder)
    assert step == 10
    assert len(broken) == 1
    assert last in broken[0]


def test_one_without_its_marker_is_named_and_skipped(folder):
    save(folder, 10)
    last = save(folder, 20)
    files.remove_folder(last, ("checkpoint.json",))
    step, [broken] = newest(folder)
    assert step == 10
    assert "checkpoint.json" in broken


def test_a_changed_byte_is_found(tmp_path):
    path = save(str(tmp_path), 10)
    with open(f"{path}/arrays.bin", "r+b") as file:
        file.seek(5)
        file.write(b"\xff")
    assert newest(str(tmp_path))[0] is None
    with pytest.raises(BrokenCheckpointError, match="variables/0"):
        read_checkpoint(path).read("variables/0")


def test_a_changed_state_is_found(tmp_path):
    path = save(str(tmp_path), 10)
    marker = tmp_path / "step-000000010" / "checkpoint.json"
    marker.write_text(marker.read_text().replace('"batches_seen": 10', '"batches_seen": 11'))
    with pytest.raises(BrokenCheckpointError, match="damaged"):
        read_checkpoint(path)


def test_the_newest_and_the_best_are_kept(folder):
    losses = [0.9, 0.2, 0.5, 0.6, 0.7, 0.8]
    held = CheckpointFolder(folder, KeepRule(newest=2))
    for epoch, loss in enumerate(losses, start=1):
        row = {"epoch": epoch, "val_loss": loss}
        held.save(epoch * 10, VALUES.items(), {"epoch_row": row})
    assert files.names(folder) == [f"step-{step:09d}" for step in (20, 50, 60)]
    assert held.of_epoch(2) == files.join(folder, "step-000000020")
    assert held.of_epoch(3) is None


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"newest": 1, "keeps_best": False}, [40]),
        ({"newest": 1, "monitor": "accuracy"}, [20, 40]),
        ({"newest": 1, "monitor": "accuracy", "mode": "min"}, [10, 40]),
        ({"newest": 1, "monitor": "val_loss"}, [30, 40]),
        ({"newest": 9}, [10, 20, 30, 40]),
    ],
)
def test_best_goes_by_monitor_and_mode(tmp_path, rule, kept):
    rows = [(0.1, 0.9), (0.8, 0.8), (0.5, 0.3), (0.4, 0.5)]
    for index, (accuracy, loss) in enumerate(rows, start=1):
        held = CheckpointFolder(str(tmp_path), KeepRule(**rule))
        held.tidy()  # As a run does that goes on.
        row = {"epoch": index, "accuracy": accuracy, "val_loss": loss}
        held.save(index * 10, VALUES.items(), {"epoch_row": row})
    assert files.names(str(tmp_path)) == [f"step-{step:09d}" for step in kept]


def test_two_of_one_step_do_not_replace_each_other(folder):
    first, second = save(folder, 10), save(folder, 10)
    assert first != second
    cut_off(files.join(second, "arrays.bin"))
    assert newest(folder)[0] == 10


def test_going_back_forgets_what_came_after(folder):
    for step in (10, 20, 30):
        save(folder, step)
    save(folder, 15)
    assert files.names(folder) == ["step-000000010", "step-000000015"]


def test_foreign_files_stay(tmp_path):
    for name in ("notes.txt", "step-old", "step-12", ".hidden"):
        (tmp_path / name).write_text("mine")
    first = save(str(tmp_path), 10, newest=1, keeps_best=False)
    (tmp_path / "step-000000010" / "plot.png").write_text("mine")
    held = CheckpointFolder(str(tmp_path), KeepRule(newest=1, keeps_best=False))
    held.tidy()
    held.save(20, VALUES.items(), {})
    assert files.names(first) == ["plot.png"]
    names = {"notes.txt", "step-old", "step-12", ".hidden", "step-000000010", "step-000000020"}
    assert set(files.names(str(tmp_path))) == names


def test_what_a_kill_left_half_written_goes(tmp_path):
    aside = tmp_path / ".step-000000020.4242"
    aside.mkdir()
    (aside / "arrays.bin").write_bytes(b"half")
    (aside / "shard-0003-0-1.data-00000-of-00001.tempstate4711").write_bytes(b"half")
    save(str(tmp_path), 10)
    held = CheckpointFolder(str(tmp_path))
    assert newest(str(tmp_path)) == (10, [])
    held.tidy()
    assert files.names(str(tmp_path)) == ["step-000000010"]


def test_a_full_disk_leaves_the_last_good_one(tmp_path, monkeypatch):
    def values():
        yield "variables/0", VALUES["variables/0"]
        raise OSError(errno.ENOSPC, "No space left on device")

    save(str(tmp_path), 10)
    with pytest.raises(CheckpointWriteError, match=r"step-000000020.*No space left") as caught:
        CheckpointFolder(str(tmp_path)).save(20, values(), {})
    assert exit_code_of(caught.value) == 1
    assert files.names(str(tmp_path)) == ["step-000000010"]
    assert newest(str(tmp_path)) == (10, [])


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(CheckpointWriteError, match=f"{tmp_path}/checkpoints"):
        save(str(tmp_path / "checkpoints"), 10)


def test_a_run_its_checkpoints_and_one_of_them_can_be_named(folder):
    paths = [save(folder, step) for step in (10, 20)]
    run = folder.rpartition("/")[0]

    def step_of(path):
        found = find_checkpoint(path, lambda text: None, key="resume")
        return found.state["position"]["batches_seen"]

    assert [step_of(path) for path in (run, folder, *paths)] == [20, 20, 10, 20]
    with pytest.raises(ValueError, match=r"no whole checkpoint.*resume="):
        step_of(f"{run}/elsewhere")


def test_state_is_json_that_others_can_read(tmp_path):
    path = save(str(tmp_path), 10, row={"epoch": 1, "loss": 0.5})
    with open(f"{path}/checkpoint.json") as file:
        content = json.load(file)
    assert content["state"]["epoch_row"] == {"epoch": 1, "loss": 0.5}
    assert content["arrays"]["variables/0"]["shape"] == [3, 4]
