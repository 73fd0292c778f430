"""What a chief tells at the end of a run that did not come to its end, or lost tasks on the way."""

import keras
import pytest

from kdist.records.events import EventLog

from .cases import ROWS, adam, dense
from .runs import NoSignals, run

DIED = {"type": "TaskDied", "message": "worker-1 was killed.", "task": "worker-1"}
LOST = [
    ("task_lost", {"task": "worker-1"}),
    ("run_restarted", {"attempt": 1}),
    ("task_restarted", {"task": "chief-0", "attempt": 1}),
]


class Writes(keras.callbacks.Callback):
    """Writes events as a launcher does, and may end the epoch with its signal."""

    signals = NoSignals()

    def __init__(self, path, events, epoch, reason=None):
        super().__init__()
        self.log = EventLog(path)
        self.events, self.awaited, self.reason = events, epoch, reason

    def on_epoch_begin(self, epoch, logs=None):
        self.is_there = epoch == self.awaited

    def on_train_batch_end(self, batch, logs=None):
        if self.is_there and batch == 1:
            for name, fields in self.events:
                self.log.write(name, **fields)
            Writes.signals.reason = self.reason


@pytest.fixture
def train(tmp_path, capsys):
    """Return a function that trains with losses that fall, and returns result and output."""

    def go(events, epoch, reason=None):
        Writes.signals = NoSignals()
        path = tmp_path / "run"
        callbacks = [Writes(path / "events.jsonl", events, epoch, reason)]
        rows = {"train": ROWS["train"]}
        code, left = run(
            path, dense(adam), rows, callbacks=callbacks, signals=Writes.signals, epochs=3
        )
        return code, left.result, left.events("epoch_ended"), capsys.readouterr().out

    return go


@pytest.mark.parametrize(
    ("events", "status", "error"),
    [([("run_failed", DIED)], "failed", DIED), ([], "stopped", None)],
    ids=["for a failure", "for a stop"],
)
def test_an_epoch_that_is_cut_is_no_whole_one(train, events, status, error):
    code, result, epochs, output = train(events, 1, "SIGTERM")
    assert (code, result["status"], result["error"]) == (143, status, error)
    assert (result["batches_seen"], result["best"]["epoch"]) == (7, 1)
    assert [event.get("is_partial") for event in epochs] == [None, True]
    assert "epoch 2/3  partial: 2 of 5 batches  loss" in output
    assert f"{status} {'after' if error else 'in'} " in output
    assert "last epoch (2, partial)" in output and "best epoch (1, by loss)" in output


def test_the_first_epoch_is_no_best_one_either(train):
    _, result, _, output = train([], 0, "SIGTERM")
    assert (result["best"], "best" in output) == (None, False)


def test_restarts_and_losses_are_those_that_the_launcher_wrote(train):
    code, result, _, output = train(LOST, 1)
    assert (code, result["status"]) == (0, "completed")
    assert (result["restarts"], result["workers_lost"]) == (1, 1)
    assert "1 worker lost, 1 restart" in output
