"""How many threads a TensorFlow server runs operations with."""

import os

import pytest

from kdist.distribute import strategies


@pytest.mark.parametrize(
    ("num_cores", "serves_calls", "num_threads"),
    [
        (1, True, 10),  # Three workers' calls may hold a thread each, and more.
        (1, False, 2),
        (None, False, 2),  # A machine that does not tell.
        (16, True, 16),
        (16, False, 16),
    ],
)
def test_calls_have_threads_for_every_worker(monkeypatch, num_cores, serves_calls, num_threads):
    monkeypatch.setattr(os, "cpu_count", lambda: num_cores)
    assert strategies._num_threads(3, serves_calls=serves_calls) == num_threads
