import io
import os

import pytest

from kdist.cluster.task import Task, TaskType
from kdist.launch.console_pump import NoiseFilter, TaskOutput, TerminalEcho, is_noise

CHIEF = Task(TaskType.CHIEF, 0)
ONE_DNN = "I0000 00:00:1795961411.800505    6097 port.cc:153] oneDNN custom operations are on."
CUDA = "E0000 00:00:1795961414.664898 6097 cuda_platform.cc:52] failed call to cuInit: UNKNOWN"
OLD = "2026-01-02 03:04:05.123456: W tensorflow/core/x.cc:7] something"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (ONE_DNN, True),
        (CUDA, True),
        (OLD, True),
        ("WARNING: All log messages before absl::InitializeLog() is called are written", True),
        ("To enable the following instructions: AVX2, rebuild TensorFlow with ...", True),
        ("Additional GRPC error information from remote target /job:ps/replica:0/task:1", True),
        (':UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"reset"}', True),
        ("This could happen if the remote target has been disconnected from the client.", True),
        ("F0000 00:00:1795961414.664898 6097 x.cc:52] Check failed", False),
        ("2026-01-02 03:04:05.123456: F tensorflow/core/x.cc:7] Check failed", False),
        ("2026-01-02 03:04:05 INFO my own log line", False),
        ("Epoch 1: loss 0.5", False),
        ("WARNING: mine", False),
        ("", False),
    ],
)
def test_what_counts_as_noise(line, expected):
    assert is_noise(line) is expected


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_noise_is_dropped_however_the_output_is_cut(size):
    written = []
    chief = NoiseFilter(written.append)
    text = f"{ONE_DNN}\nWARNING: mine\n50%\r60%\r{OLD}\n{CUDA}\n\nEpoch 1\n2026 rows\nend"
    for start in range(0, len(text), size):
        chief.feed(text[start : start + size])
    chief.close()
    assert "".join(written) == "WARNING: mine\n50%\r60%\r\nEpoch 1\n2026 rows\nend"


def test_a_progress_bar_is_not_held_back():
    written = []
    chief = NoiseFilter(written.append)
    for piece in ("50%", " 3 ms", "\r", "\x1b[2K60%", "2026"):
        chief.feed(piece)
    assert written == ["50%", " 3 ms", "\r", "\x1b[2K60%", "2026"]
    chief.feed("\r20")  # May still become noise.
    chief.feed("27 rows\n")
    assert "".join(written[5:]) == "\r2027 rows\n"


def test_output_before_the_log_is_open_comes_first(tmp_path):
    output = TaskOutput(CHIEF)
    output.feed(b"one\n")
    output.open_log(tmp_path / "logs")
    output.feed(b"two\n")
    output.close()
    assert (tmp_path / "logs" / "chief-0.log").read_bytes() == b"one\ntwo\n"


def test_output_that_waits_for_a_log_is_bounded(tmp_path):
    output = TaskOutput(CHIEF)
    for index in range(10):
        output.feed(bytes([48 + index]) * (1 << 20))
    output.open_log(tmp_path)
    output.close()
    content = (tmp_path / "chief-0.log").read_bytes()
    assert len(content) == 4 << 20 and content.startswith(b"6") and content.endswith(b"9")


def test_letters_cut_in_two_are_shown_whole():
    stream = io.StringIO()
    output = TaskOutput(CHIEF, NoiseFilter(TerminalEcho(stream).write))
    for byte in "é→\n".encode():
        output.feed(bytes([byte]))
    assert stream.getvalue() == "é→\n"


def test_the_tail_is_plain_text():
    output = TaskOutput(CHIEF)
    output.feed(f"first\n\x1b[2K\x1b[31mred\x1b[0m\r50%\n\n{ONE_DNN}\nlast".encode())
    assert output.tail(3) == ["red", "50%", "last"]


def test_a_full_disk_ends_nothing(tmp_path, monkeypatch):
    output = TaskOutput(CHIEF)
    output.open_log(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    output.feed(b"x")
    assert "chief-0.log cannot be written: No space left on device" in output.log_error


def test_a_terminal_that_lacks_a_letter_gets_another():
    raw = io.BytesIO()
    echo = TerminalEcho(io.TextIOWrapper(raw, encoding="ascii"))
    echo.write("a→b\n")
    assert raw.getvalue() == b"a?b\n"
