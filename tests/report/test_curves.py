"""curves.png: what is drawn is decided apart from the drawing."""

import math

import pytest

from kdist.training.report.curves import plan_panels, write_curves
from kdist.training.report.metrics_csv import MetricsCsv


def rows(**series):
    length = len(next(iter(series.values())))
    return [
        {"epoch": i + 1, **{name: values[i] for name, values in series.items()}}
        for i in range(length)
    ]


def titles(history):
    return [panel.title for panel in plan_panels(history)]


def test_loss_comes_first_and_validation_shares_its_panel():
    panels = plan_panels(rows(auc=[0.5, 0.6], loss=[2.0, 1.0], val_loss=[None, 1.5]))
    assert [panel.title for panel in panels] == ["loss", "auc"]
    assert panels[0].train == (2.0, 1.0)
    assert panels[0].validation == (None, 1.5)


def test_the_learning_rate_is_drawn_only_where_it_changes():
    assert titles(rows(loss=[2.0, 1.0], learning_rate=[0.1, 0.1])) == ["loss"]
    assert titles(rows(loss=[2.0, 1.0], learning_rate=[0.1, 0.2])) == ["loss", "learning_rate"]


@pytest.mark.parametrize(
    ("loss", "is_log"),
    [([100.0, 1.0], True), ([2.0, 1.0], False), ([100.0, 0.0], False), ([math.inf, 1.0], False)],
)
def test_a_loss_over_decades_is_drawn_on_a_log_scale(loss, is_log):
    assert plan_panels(rows(loss=loss))[0].is_log is is_log


def test_where_values_stop_being_finite_is_said():
    panels = plan_panels(rows(loss=[1.0, math.nan, math.nan], auc=[0.1, 0.2, 0.3]))
    assert [panel.not_finite_from for panel in panels] == [2, None]


@pytest.mark.parametrize("num_epochs", [1, 3, 500])
def test_a_picture_is_written(tmp_path, epoch, num_epochs):
    csv_path, png_path = tmp_path / "metrics.csv", tmp_path / "curves.png"
    table = MetricsCsv(csv_path)
    for number in range(1, num_epochs + 1):
        table.append(
            epoch(number, loss=1 / number, val_loss=2.0, **{"$a_{": 0.5}, learning_rate=1 / number)
        )
    best = {"monitor": "loss", "value": 1 / num_epochs, "epoch": num_epochs}
    assert write_curves(csv_path, png_path, title="50% of $", best=best)
    assert png_path.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "metrics.csv"]


def test_a_run_of_nothing_but_nan_is_drawn_too(tmp_path, epoch):
    MetricsCsv(tmp_path / "metrics.csv").append(epoch(1, loss=math.nan))
    assert write_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")


def test_without_an_epoch_there_is_no_picture(tmp_path):
    assert not write_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")
    assert list(tmp_path.iterdir()) == []
