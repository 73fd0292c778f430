"""Which epochs of a run a search takes for whole ones."""

import pytest

from kdist.tuning.epochs import EpochReader, whole_epochs

from .kit import append_epoch, append_event, write_epochs


def ended(epoch, batches, **fields):
    return {"event": "epoch_ended", "epoch": epoch, "batches_seen": batches, **fields}


def cut(epoch, batches):
    return ended(epoch, batches, is_partial=True)


def resumed(step):
    return {"event": "run_resumed", "step": step}


@pytest.mark.parametrize(
    ("events", "epochs"),
    [
        ([], set()),
        ([{"event": "task_started"}, ended(1, 10), ended(2, 20)], {1, 2}),
        ([ended(1, 10), cut(2, 14)], {1}),
        ([ended(1, 10), cut(2, 14), resumed(14)], {1}),
        ([ended(1, 10), cut(2, 14), resumed(14), ended(2, 20)], {1, 2}),
        ([ended(1, 10), ended(2, 20), ended(3, 30), resumed(10)], {1}),
        ([ended(1, 10), ended(2, 20), ended(1, 10)], {1}),
    ],
    ids=[
        "nothing",
        "whole ones",
        "cut",
        "cut, and begun again",
        "cut, and ended",
        "lost with their checkpoints",
        "trained again without any checkpoint",
    ],
)
def test_a_part_of_an_epoch_is_none(events, epochs):
    assert whole_epochs(events) == epochs


@pytest.fixture
def reader(tmp_path):
    """Return a reader of a run that goes on, after it was stopped in its second epoch."""
    write_epochs(tmp_path, [0.9])
    append_epoch(tmp_path, 2, "", is_partial=True)
    reader = EpochReader(tmp_path)
    reader.begin(0)
    return reader


def test_the_row_of_an_epoch_that_was_cut_waits_for_the_whole_one(reader, tmp_path):
    assert reader.new(is_over=False) == []
    append_event(tmp_path, "run_resumed", step=14)
    assert reader.new(is_over=False) == [(1, {"loss": 1.0, "val_loss": 0.9})]
    assert reader.new(is_over=False) == []
    write_epochs(tmp_path, [0.9, 0.2])
    assert reader.new(is_over=False) == [(2, {"loss": 1.0, "val_loss": 0.2})]


def test_a_run_that_is_over_is_read_as_it_stands(reader):
    assert [epoch for epoch, _ in reader.new(is_over=True)] == [1]


def test_epochs_that_are_trained_again_count_as_they_came_out_then(tmp_path):
    write_epochs(tmp_path, [0.9, 0.8])
    reader = EpochReader(tmp_path)
    reader.begin(0)
    assert reader.new(is_over=False) == []
    append_event(tmp_path, "run_resumed", step=10)
    assert [epoch for epoch, _ in reader.new(is_over=False)] == [1]
    append_epoch(tmp_path, 2, 0.7)
    assert reader.new(is_over=True)[-1] == (2, {"loss": 1.0, "val_loss": 0.7})


def test_a_cut_epoch_without_validation_is_not_judged(tmp_path):
    reader = EpochReader(tmp_path)
    reader.begin(0)
    write_epochs(tmp_path, [])
    append_epoch(tmp_path, 1, "", is_partial=True)
    assert reader.new(is_over=True) == []


def test_epochs_of_the_parent_are_left_out(tmp_path):
    reader = EpochReader(tmp_path)
    reader.begin(1)
    write_epochs(tmp_path, [0.9, 0.2])
    assert [epoch for epoch, _ in reader.new(is_over=False)] == [2]
    assert EpochReader(tmp_path / "nothing").new(is_over=True) == []
