"""Reports that cannot be written cost a warning, never the run."""

import dataclasses
import io
import math
from dataclasses import dataclass

from kdist.training.report.console import ConsoleReport
from kdist.training.report.run_report import RunReport


@dataclass(frozen=True)
class Pipe:
    is_terminal: bool = False
    width: int = 80
    color: bool = False


def make(folder):
    stream = io.StringIO()
    report = RunReport(
        ConsoleReport(Pipe(), stream),
        metrics_csv=folder / "metrics.csv",
        tensorboard=folder / "tensorboard",
        curves_png=folder / "curves.png",
    )
    return report, stream


def test_a_run_leaves_all_its_files(tmp_path, opening, progress, epoch):
    report, stream = make(tmp_path)
    with report:
        report.opening(opening())
        report.progress(progress())
        report.epoch(epoch(1, loss=0.5, val_loss=0.4))
        report.epoch(epoch(2, loss=0.4, val_loss=0.6))
        report.finish()
        report.closing({"status": "completed", "best": report.best()})
    assert report.warnings == []
    assert report.best() == {"monitor": "val_loss", "value": 0.4, "epoch": 1}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["curves.png", "metrics.csv", "tensorboard"]
    assert "best epoch (1, by val_loss)  loss 0.5000  val_loss 0.4000" in stream.getvalue()


def test_what_the_opening_has_said_is_not_said_again(tmp_path, opening):
    report, stream = make(tmp_path)
    report.opening(opening(notes=("data.train is read as a stream.",)))
    report.closing({"warnings": ["data.train is read as a stream.", "The disk is full."]})
    assert stream.getvalue().count("read as a stream") == 1
    assert "The disk is full." in stream.getvalue()


def test_an_epoch_that_a_stop_ended_is_never_the_best(tmp_path, opening, epoch):
    report, stream = make(tmp_path)
    report.opening(opening())
    report.epoch(epoch(1, loss=0.5))
    report.epoch(dataclasses.replace(epoch(2, loss=0.1), planned_steps=50))
    report.finish()
    report.closing({"status": "failed", "metrics": {"loss": 0.1}, "best": report.best()})
    assert report.best() == {"monitor": "loss", "value": 0.5, "epoch": 1}
    assert stream.getvalue().splitlines()[-3:] == [
        "failed",
        "  last epoch (2, partial)  loss 0.1000",
        "  best epoch (1, by loss)  loss 0.5000",
    ]


def test_the_speed_of_the_first_epoch_of_a_run_that_goes_on_is_its_own(tmp_path, opening, epoch):
    report, stream = make(tmp_path)
    report.go_on_after([{"epoch": 1, "loss": 0.5}], 23)
    report.opening(opening())
    report.epoch(epoch(2, loss=0.4))
    assert stream.getvalue().endswith("0.50 s  46 steps/s\n")


def test_files_that_cannot_be_written_are_named_once_each(tmp_path, opening, epoch):
    (tmp_path / "file").write_text("")
    report, stream = make(tmp_path / "file")
    report.opening(opening())
    report.epoch(epoch(1, loss=0.5))
    report.epoch(epoch(2, loss=math.nan))
    report.finish()
    starts = sorted(warning.split(":")[0] for warning in report.warnings)
    assert starts == [
        "Gave up writing TensorBoard's files",
        "Gave up writing curves.png",
        "Gave up writing metrics.csv",
    ]
    assert report.best() == {"monitor": "loss", "value": 0.5, "epoch": 1}
    assert "epoch 2/5  loss nan" in stream.getvalue()


def test_somebody_elses_metrics_csv_is_no_reason_to_stop(tmp_path, epoch):
    (tmp_path / "metrics.csv").write_text("epoch,loss\none,two\n")
    report, _ = make(tmp_path)
    report.epoch(epoch(1, loss=0.5))
    assert [warning.split(":")[0] for warning in report.warnings] == ["Gave up writing metrics.csv"]
