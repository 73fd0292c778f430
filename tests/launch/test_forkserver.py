"""The process that tasks are forked from may be killed at any moment."""

import pytest

from kdist.errors import EnvironmentFault
from kdist.launch import forkserver


class Refused:
    """A process whose server refuses, as one does that is about to go."""

    def __init__(self, times):
        self.times, self.num_starts = times, 0

    def start(self):
        self.num_starts += 1
        if self.num_starts <= self.times:
            raise ConnectionRefusedError(111, "Connection refused")


def test_a_server_that_is_about_to_go_is_replaced():
    process = Refused(times=2)
    forkserver.start(process, 30)
    assert process.num_starts == 3


def test_a_server_that_goes_on_to_refuse_is_told(monkeypatch):
    monkeypatch.setattr(forkserver, "_GONE_WITHIN_S", 0.0)
    with pytest.raises(EnvironmentFault, match="died before it could start a task"):
        forkserver.start(Refused(times=1000), 30)
