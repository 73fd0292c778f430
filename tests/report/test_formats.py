"""Numbers as people read them."""

import math

import pytest

from kdist.training.report import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.98, "0.9800"),
        (-0.98, "-0.9800"),
        (0.99999, "1.0000"),
        (2.30259, "2.3026"),
        (12.34567, "12.346"),
        (1234.5678, "1234.6"),
        (99999.4, "99999"),
        (123456.0, "1.235e+05"),
        (0.00012345, "1.234e-04"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_metric(value, text):
    assert formats.metric_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.001, "0.00 s"),
        (1.154, "1.15 s"),
        (12.34, "12.3 s"),
        (59.96, "1 min 00 s"),
        (200.4, "3 min 20 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (97_200, "1 d 03 h"),
        (math.nan, "unknown"),
    ],
)
def test_duration(seconds, text):
    assert formats.duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (11.2, "0:12"), (59.5, "1:00"), (3723, "1:02:03"), (math.inf, "-:--")],
)
def test_clock(seconds, text):
    assert formats.clock_text(seconds) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [
        (7890.4, "7,890 steps/s"),
        (12.3, "12 steps/s"),
        (1.26, "1.3 steps/s"),
        (0.5, "2.0000 s/step"),
        (0, "unknown steps/s"),
    ],
)
def test_rate(per_second, text):
    assert formats.rate_text(per_second, "step") == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(1, "1 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (400_000_000, "381.5 MiB")],
)
def test_bytes(num_bytes, text):
    assert formats.bytes_text(num_bytes) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(1, "epoch", "1 epoch"), (2, "epoch", "2 epochs"), (1437, "batch", "1,437 batches")],
)
def test_plural(count, noun, text):
    assert formats.plural_text(count, noun) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("größe 大", "größe 大"), ("a\nb\r\nc", "a b c"), ("\x1b[31mred", "\\x1b[31mred")],
)
def test_control_characters_are_shown_not_sent(text, shown):
    assert formats.printable(text) == shown
