"""A signal during validation ends it within a stretch; the run goes on as if it had not come."""

import keras
import numpy as np
import pytest

from kdist.training import stretches

from .cases import ROWS, adam, dense
from .harness import prepare
from .runs import NoSignals, assert_same_run, run
from .test_own_train_step import build as own_step


class ComesDuring(keras.callbacks.Callback):
    """A signal comes in a hook of some epoch; counts the pairs of test hooks.

    A run gets a copy of its callbacks, so what both share belongs to the class.
    """

    signals = NoSignals()
    num_open = 0

    def __init__(self, hook, epoch=1):
        super().__init__()
        self.hook = hook
        self.awaited = epoch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_test_begin(self, logs=None):
        ComesDuring.num_open += 1
        self._come("on_test_begin")

    def on_test_end(self, logs=None):
        ComesDuring.num_open -= 1
        assert np.isfinite(list(logs.values())).all()

    def on_train_end(self, logs=None):
        self._come("on_train_end")

    def _come(self, hook):
        if (hook, self.epoch) == (self.hook, self.awaited):
            ComesDuring.signals.reason = "SIGTERM"


@pytest.fixture
def signals(monkeypatch):
    """Return where a signal shows; between any two batches somebody looks."""
    monkeypatch.setattr(stretches, "TARGET_S", 1e-9)
    ComesDuring.signals, ComesDuring.num_open = NoSignals(), 0
    return ComesDuring.signals


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("build", "devices", "epoch"),
    [(dense(adam), 1, 1), (dense(adam), 2, 0), slow(own_step(), 1, 1), slow(dense(adam), 1, 2)],
    ids=["single", "mirrored", "own_step", "last_epoch"],
)
def test_a_validation_is_abandoned_and_run_again(build, devices, epoch, signals, tmp_path):
    options = {"devices": devices, "epochs": 3}
    # Three rounds of one batch on each device.
    rows = {"train": ROWS["train"], "validation": tuple(a[: 24 * devices] for a in ROWS["train"])}
    _, unbroken = run(tmp_path / "unbroken", build, rows, **options)
    comes = ComesDuring("on_test_begin", epoch)
    code, stopped = run(
        tmp_path / "run", build, rows, callbacks=[comes], signals=signals, **options
    )
    assert (code, stopped.result["status"], comes.num_open) == (143, "stopped", 0)
    seen = 5 * (epoch + 1)
    assert stopped.result["batches_seen"] == stopped.steps[-1] == seen
    assert not [name for name in stopped.result["metrics"] if name.startswith("val_")]
    code, left = run(tmp_path / "run", build, rows, **options)
    assert (code, left.result["status"], left.result["resumed_from_step"]) == (0, "completed", seen)
    assert_same_run(left, unbroken)


def test_a_stop_by_a_callback_in_mid_epoch_outlasts_it(signals, tmp_path):
    class StopsAtTwo(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    _, unbroken = run(tmp_path / "unbroken", dense(adam), ROWS, callbacks=[StopsAtTwo()])
    comes = ComesDuring("on_test_begin", 0)
    code, stopped = run(
        tmp_path / "run", dense(adam), ROWS, callbacks=[StopsAtTwo(), comes], signals=signals
    )
    assert (code, stopped.result["batches_seen"]) == (143, 2)
    code, left = run(tmp_path / "run", dense(adam), ROWS, callbacks=[StopsAtTwo()])
    assert code == 0
    assert_same_run(left, unbroken)


def test_the_validation_after_training_is_abandoned_too(signals, tmp_path):
    """Averaged weights are validated once more; by then every step is done and saved."""
    build = dense(lambda: adam(use_ema=True))
    comes = ComesDuring("on_train_end")
    code, stopped = run(tmp_path, build, ROWS, callbacks=[comes], signals=signals)
    assert (code, stopped.result["status"]) == (143, "stopped")
    assert stopped.result["batches_seen"] == 10
    assert "final_metrics" not in stopped.result
    code, left = run(tmp_path, build, ROWS)
    assert (code, left.result["status"]) == (0, "completed")
    assert left.result["final_metrics"]["val_loss"] > 0


def one_stretch(num_done):
    """Evaluate one batch on each replica."""
    return 1 if num_done == 0 else 0


class OfUnknownSize:
    """A source that nobody has counted."""

    batches_per_pass = None

    def __init__(self, source):
        self._source = source

    def __getattr__(self, name):
        return getattr(self._source, name)


@pytest.mark.parametrize("wrap", [lambda source: source, OfUnknownSize], ids=["known", "unknown"])
def test_an_evaluation_has_what_its_stretches_have(wrap):
    """Deals of any size add up to the whole; one that ends early has the sums of what was done."""
    part = tuple(array[:30] for array in ROWS["train"])
    outcome = prepare(dense(adam), {"train": part, "validation": part}, replicas=2)
    loop, source = outcome.engine.loop, wrap(outcome.trainer._validation._source)
    whole = loop.evaluate(source, None)
    assert loop.logs.num_examples(whole) == 30
    asked = []
    dealt = loop.evaluate(source, None, lambda num_done: asked.append(num_done) or 1)
    assert asked[:2] == [0, 2]  # A batch on each device.
    np.testing.assert_allclose(dealt, whole, rtol=1e-12)
    assert loop.logs.num_examples(loop.evaluate(source, None, one_stretch)) == 16
