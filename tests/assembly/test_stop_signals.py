"""What a task does when it is told to stop; its process is not really signalled."""

import os
import signal

import pytest

from kdist.assembly import signals as signals_module
from kdist.assembly.signals import StoppedEarly, StopSignals

TERM, INT = signal.SIGTERM, signal.SIGINT


class Exited(BaseException):
    pass


@pytest.fixture(autouse=True)
def exits(monkeypatch):
    def leave(code):
        raise Exited(code)

    monkeypatch.setattr(os, "_exit", leave)


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(signals_module.threading, "Timer", None)  # Nobody may set one.

    def make_signals(*, is_host=False, is_local=True):
        now = [10.0]
        made = StopSignals(is_host=is_host, is_local=is_local, grace_s=5, clock=lambda: now[0])
        made.now = now
        return made

    return make_signals


@pytest.mark.parametrize("is_host", [True, False])
def test_before_training_a_signal_ends_the_task(make, is_host):
    with pytest.raises(StoppedEarly, match="SIGTERM: stopped before training began") as caught:
        make(is_host=is_host)._receive(TERM, None)
    assert caught.value.exit_code == 143


@pytest.mark.parametrize("is_host", [True, False])
def test_then_it_asks_to_stop_and_a_second_one_ends_at_once(make, is_host):
    told = []
    signals = make(is_host=is_host)
    signals.begin(told.append)
    signals._receive(INT, None)
    assert (signals(), told) == ("SIGINT", ["SIGINT"])
    signals.now[0] += 2
    with pytest.raises(Exited, match="143"):
        signals._receive(TERM, None)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_signal_that_the_launcher_passes_on_as_well_is_one(make, is_local):
    signals = make(is_local=is_local)
    signals.begin()
    signals._receive(TERM, None)
    signals.now[0] += 0.5
    if is_local:
        signals._receive(TERM, None)
    else:
        with pytest.raises(Exited, match="143"):
            signals._receive(TERM, None)
