"""metrics.csv holds one row an epoch, whatever happens to its writer."""

import math

import pytest

from kdist.training.report.metrics_csv import MetricsCsv, read_metrics


def test_columns_follow_the_contract(tmp_path, epoch):
    path = tmp_path / "metrics.csv"
    table = MetricsCsv(path)
    table.append(epoch(1, loss=0.5, val_loss=0.25, accuracy=0.75, val_accuracy=0.125))
    table.append(epoch(2, loss=1e-7, val_loss=0.1, accuracy=1, val_accuracy=1 / 3))
    assert path.read_text() == (
        "epoch,global_step,seconds,examples,loss,accuracy,val_loss,val_accuracy,learning_rate\n"
        "1,23,0.5,1437,0.5,0.75,0.25,0.125,0.001\n"
        "2,46,0.5,1437,1e-07,1.0,0.1,0.3333333333333333,0.001\n"
    )


def test_rows_come_back_as_numbers(tmp_path, epoch):
    table = MetricsCsv(tmp_path / "metrics.csv")
    table.append(epoch(1, loss=math.inf, learning_rate=None))
    assert table.read() == [
        {
            "epoch": 1,
            "global_step": 23,
            "seconds": 0.5,
            "examples": 1437,
            "loss": math.inf,
            "learning_rate": None,
        }
    ]


def test_a_metric_that_comes_late_gets_its_column(tmp_path, epoch):
    table = MetricsCsv(tmp_path / "metrics.csv")
    table.append(epoch(1, loss=0.5))
    table.append(epoch(2, loss=0.4, val_loss=0.3))
    table.append(epoch(3, loss=0.2))
    assert [row["val_loss"] for row in table.read()] == [None, 0.3, None]
    assert [row["loss"] for row in table.read()] == [0.5, 0.4, 0.2]


def test_another_attempt_replaces_the_epochs_that_it_repeats(tmp_path, epoch):
    path = tmp_path / "metrics.csv"
    first = MetricsCsv(path)
    for number in (1, 2, 3):
        first.append(epoch(number, loss=1.0))
    second = MetricsCsv(path)
    second.append(epoch(2, loss=2.0))
    second.append(epoch(3, loss=2.0))
    assert [(row["epoch"], row["loss"]) for row in read_metrics(path)] == [
        (1, 1.0),
        (2, 2.0),
        (3, 2.0),
    ]


def test_a_line_cut_off_by_a_kill_is_ignored(tmp_path, epoch):
    path = tmp_path / "metrics.csv"
    MetricsCsv(path).append(epoch(1, loss=1.0))
    path.write_text(path.read_text() + "2,46,0.5,14")
    assert [row["epoch"] for row in read_metrics(path)] == [1]
    MetricsCsv(path).append(epoch(2, loss=2.0))
    assert [row["epoch"] for row in read_metrics(path)] == [1, 2]


@pytest.mark.parametrize("name", ["a,b", 'say "hi"', "größe", "seconds"])
def test_any_metric_name_survives(tmp_path, epoch, name):
    table = MetricsCsv(tmp_path / "metrics.csv")
    facts = epoch(1)
    table.append(type(facts)(**{**vars(facts), "metrics": {name: 7.0}}))
    (row,) = table.read()
    assert row["seconds"] == 0.5
    assert 7.0 in row.values()


def test_no_file_has_no_rows(tmp_path):
    assert read_metrics(tmp_path / "metrics.csv") == []


def test_no_temporary_file_is_left(tmp_path, epoch):
    MetricsCsv(tmp_path / "metrics.csv").append(epoch(1, loss=1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]
