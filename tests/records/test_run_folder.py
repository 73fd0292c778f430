import multiprocessing
import os
import signal

import pytest

from kdist.errors import EnvironmentFault, exit_code_of
from kdist.records.run_folder import RunFolder, RunFolderTakenError

FORK = multiprocessing.get_context("fork")


def test_create_makes_parents_and_writes_the_configuration(tmp_path):
    with RunFolder.create(tmp_path / "a" / "b", "epochs: 3\n") as folder:
        assert folder.config_yaml.read_text() == "epochs: 3\n"
        assert folder.holds_run()
        assert folder.path.is_absolute()


def _hold(path, is_locked, may_end):
    with RunFolder.create(path, "x: 1"):
        is_locked.set()
        may_end.wait(30)


def test_a_folder_in_use_is_refused_and_left_alone(tmp_path):
    path, is_locked, may_end = tmp_path / "run", FORK.Event(), FORK.Event()
    holder = FORK.Process(target=_hold, args=(path, is_locked, may_end))
    holder.start()
    assert is_locked.wait(30)
    before = sorted(os.listdir(path))
    with pytest.raises(RunFolderTakenError, match=f"in use by process {holder.pid}") as caught:
        RunFolder.reopen(path)
    assert exit_code_of(caught.value) == 2
    assert sorted(os.listdir(path)) == before
    assert (path / "config.yaml").read_text() == "x: 1"
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(30)
    with RunFolder.reopen(path) as folder:  # The lock died with its holder.
        assert (path / "config.yaml").read_text() == "x: 1"
        folder.write_config("x: 3")
    assert (path / "config.yaml").read_text() == "x: 3"


def test_a_folder_that_holds_a_run_is_refused(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch\n")
    with pytest.raises(RunFolderTakenError, match=f"already holds a run.*{tmp_path}"):
        RunFolder.create(tmp_path, "x: 1")
    assert os.listdir(tmp_path) == ["metrics.csv"]
    RunFolder.reopen(tmp_path).release()
    assert (tmp_path / "metrics.csv").read_text() == "epoch\n"


def test_a_folder_without_a_run_is_taken(tmp_path):
    (tmp_path / ".hydra").mkdir()
    RunFolder.create(tmp_path, "x: 1").release()


def _create_unique(path, queue):
    with RunFolder.create(path, "x: 1", make_unique=True) as folder:
        queue.put(folder.path.name)
        queue.get()


def test_runs_that_start_together_get_folders_of_their_own(tmp_path):
    pipes = [FORK.Pipe() for _ in range(4)]

    class Channel:
        def __init__(self, end):
            self.put, self.get = end.send, end.recv

    processes = [
        FORK.Process(target=_create_unique, args=(tmp_path / "run", Channel(child)))
        for _, child in pipes
    ]
    for process in processes:
        process.start()
    names = [parent.recv() for parent, _ in pipes if parent.poll(30)]
    for parent, _ in pipes:
        parent.send("end")
    for process in processes:
        process.join(30)
    assert sorted(names) == ["run", "run-2", "run-3", "run-4"]


def test_nothing_is_left_where_the_folder_cannot_be_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        RunFolder.create(tmp_path / "a" / "run", "x: 1")
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match=f"{tmp_path}/file/run") as caught:
        RunFolder.create(tmp_path / "file" / "run", "x: 1")
    assert exit_code_of(caught.value) == 2


def test_undo_removes_what_create_has_made_and_nothing_else(tmp_path):
    for there in ((), ("a",), ("a", "run")):
        (mine := tmp_path.joinpath(*there)).mkdir(exist_ok=True)
        with RunFolder.create(tmp_path / "a" / "run", "x: 1") as folder:
            folder.undo()
        assert os.listdir(mine) == []
    (tmp_path / "a" / "run" / "notes.txt").touch()
    with RunFolder.create(tmp_path / "a" / "run", "x: 1") as folder:
        folder.undo()
        folder.undo()
    assert os.listdir(tmp_path / "a" / "run") == ["notes.txt"]


def test_undo_leaves_a_run_that_was_there_as_it_was(tmp_path):
    RunFolder.create(tmp_path / "run", "x: 1").release()
    with RunFolder.reopen(tmp_path / "run") as folder:
        folder.undo()
        with pytest.raises(RunFolderTakenError, match="in use"):  # The lock is held all the same.
            RunFolder.reopen(tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run")) == [".lock", "config.yaml"]
    (tmp_path / "run" / ".lock").unlink()
    with RunFolder.reopen(tmp_path / "run") as folder:
        folder.undo()
    assert os.listdir(tmp_path / "run") == ["config.yaml"]
