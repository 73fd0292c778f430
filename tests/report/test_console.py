"""The console on a pipe, in a terminal, and when its reader is gone."""

import io
import re
import sys
from dataclasses import dataclass

import pytest
from rich.console import Console

from kdist.training.report.console import ConsoleReport
from kdist.training.report.terminal import progress_renderable

RESULT = {
    "status": "completed",
    "metrics": {"loss": 0.1, "accuracy": 0.95},
    "best": {"monitor": "loss", "value": 0.1, "epoch": 1},
    "seconds": {"total": 12.3, "startup": 2.1, "train": 9.8},
    "run_dir": "outputs/x",
}


@dataclass(frozen=True)
class FakeTerminal:
    is_terminal: bool = True
    width: int = 100
    color: bool = True


class FakeClock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


PIPE = FakeTerminal(is_terminal=False, color=False)


def show_a_run(report, clock, opening, progress, epoch):
    with report:
        report.opening(opening())
        report.status("tracing")
        for step in range(1, 24):
            clock.now_s += 1
            report.progress(progress(step=step))
        report.status("validating")
        report.epoch(epoch(1, loss=0.1, accuracy=0.95))
        report.closing(RESULT)


def test_piped_output_is_plain_lines(opening, progress, epoch):
    stream, clock = io.StringIO(), FakeClock()
    show_a_run(ConsoleReport(PIPE, stream, clock), clock, opening, progress, epoch)
    text = stream.getvalue()
    assert all(c.isprintable() or c == "\n" for c in text)
    assert text.isascii()
    assert text.splitlines()[9:] == [
        "epoch 2/5  step 10/23  loss 0.5123  accuracy 0.9000  123 steps/s  ETA 1:02",
        "epoch 2/5  step 20/23  loss 0.5123  accuracy 0.9000  123 steps/s  ETA 1:02",
        "epoch 1/5  loss 0.1000  accuracy 0.9500  0.50 s  46 steps/s",
        "completed in 12.3 s",
        "  last and best epoch (1, by loss)  loss 0.1000  accuracy 0.9500",
        "  time                              2.10 s until the first step, 9.80 s training",
        "  run folder                        outputs/x",
    ]


def test_hostile_names_cannot_steer_the_console(opening, epoch):
    stream = io.StringIO()
    report = ConsoleReport(PIPE, stream)
    report.opening(opening(run_dir="out\x1b[2J\nputs", notes=("a\rb",)))
    report.epoch(epoch(1, **{"lo\x07ss": 1.0}))
    assert all(c.isprintable() or c == "\n" for c in stream.getvalue())


def screen(text, width=100):
    """Play the few control sequences that the bar uses; return the lines that stay."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", text):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\x1b[1A":
            row -= 1
        elif token == "\x1b[2K":
            lines[row] = ""
        elif not token.startswith(("\x1b", "\r")):
            assert len(lines[row] + token) <= width
            lines[row] += token
    return [line.rstrip() for line in lines if line.strip()]


def test_terminal_keeps_epochs_and_removes_the_bar(opening, progress, epoch):
    stream, clock = io.StringIO(), FakeClock()
    show_a_run(ConsoleReport(FakeTerminal(), stream, clock), clock, opening, progress, epoch)
    text = stream.getvalue()
    assert "12/23" in text and "tracing" in text and "validating" in text
    assert "\x1b[?25l" not in text
    lines = screen(text)
    assert lines[0].startswith("╭─ kdist ─")
    assert not any("12/23" in line or "tracing" in line for line in lines)
    assert "epoch 1/5  loss 0.1000  accuracy 0.9500  0.50 s  46 steps/s" in lines
    assert any(line.startswith("╭─ completed in 12.3 s ─") for line in lines)
    assert any(re.match(r"│ +accuracy +0.9500 ", line) for line in lines)


def test_each_frame_ends_with_a_line_break(progress):
    stream, clock = io.StringIO(), FakeClock()
    with ConsoleReport(FakeTerminal(), stream, clock) as report:
        for _ in range(3):
            clock.now_s += 1
            report.progress(progress())
            assert stream.getvalue().endswith("\n")


def test_what_the_user_prints_stays_above_the_bar(progress, monkeypatch):
    stream, clock = io.StringIO(), FakeClock()
    monkeypatch.setattr(sys, "stdout", stream)
    with ConsoleReport(FakeTerminal(), stream, clock) as report:
        clock.now_s += 1
        report.progress(progress())
        print("from a callback")
        clock.now_s += 1
        report.progress(progress(step=13))
        lines = screen(stream.getvalue())
        assert lines[0] == "from a callback"
        assert "13/23" in lines[1] and len(lines) == 2
    assert sys.stdout is stream
    assert screen(stream.getvalue()) == ["from a callback"]


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 100, 200])
def test_the_bar_never_wraps(progress, width):
    metrics = {"loss": 0.5, "accuracy": 0.9, "a_rather_long_metric_name": 0.1, "auc": 0.5}
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(progress_renderable(progress(metrics=metrics), width))
    lines = capture.get().rstrip("\n").split("\n")
    assert len(lines) == 1 and len(lines[0]) <= width
    assert lines[0].startswith("epoch 2")


def test_showing_is_rare_enough_to_cost_nothing(progress):
    stream, clock = io.StringIO(), FakeClock()
    report = ConsoleReport(PIPE, stream, clock)
    clock.now_s = 9.9
    assert not report.is_progress_due
    report.progress(progress())
    assert stream.getvalue() == ""
    clock.now_s = 10
    assert report.is_progress_due


@pytest.mark.parametrize("terminal", [FakeTerminal(), PIPE])
def test_ascii_terminals_get_ascii(terminal, opening, progress, epoch):
    raw, clock = io.BytesIO(), FakeClock()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    report = ConsoleReport(terminal, stream, clock)
    show_a_run(report, clock, lambda: opening(run_dir="größe"), progress, epoch)
    assert b"gr??e" in raw.getvalue() or b"gr?" in raw.getvalue()


class LostStream(io.StringIO):
    def __init__(self, error):
        super().__init__()
        self.error = error
        self.attempts = 0

    def write(self, text, /):
        self.attempts += 1
        raise self.error


@pytest.mark.parametrize("terminal", [FakeTerminal(), PIPE])
@pytest.mark.parametrize("error", [BrokenPipeError(32, "gone"), OSError(28, "disk full")])
def test_a_lost_reader_ends_the_showing_not_the_run(terminal, error, opening, progress, epoch):
    stream, clock = LostStream(error), FakeClock()
    show_a_run(ConsoleReport(terminal, stream, clock), clock, opening, progress, epoch)
    assert stream.attempts == 1


def test_a_closed_stream_ends_the_showing_not_the_run(opening, progress, epoch):
    stream, clock = io.StringIO(), FakeClock()
    stream.close()
    show_a_run(ConsoleReport(PIPE, stream, clock), clock, opening, progress, epoch)


def test_a_slow_reader_loses_lines_only(opening):
    stream = LostStream(BlockingIOError(11, "full"))
    report = ConsoleReport(PIPE, stream)
    report.opening(opening())
    report.closing(RESULT)
    assert stream.attempts == 2
