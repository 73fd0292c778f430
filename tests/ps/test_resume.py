"""What was cut off inside of an epoch goes on there: nothing of the epoch is lost or done twice."""

import keras
import numpy as np
import pytest

from kdist.assembly import training_run
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import TaskType
from tests.engine.cases import ROWS, L, adam, dense
from tests.engine.runs import DiesAt, Killed, assert_same_run, run
from tests.engine.test_resume import plateau
from tests.ps.models import seen_counts
from tests.ps.resuming import go_on, keep
from tests.ps.test_data import FORMS, NUM_ROWS, Recorder, build

CUT = 8  # The epochs here have five to eleven batches.


def dropout(rate=0.3):
    """Every state that a step writes: slots, moving statistics, and masks drawn by step."""
    model = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(8, activation="tanh"),
            L.BatchNormalization(),
            L.Dropout(rate),
            L.Dense(3),
        ]
    )
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.8)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


@pytest.mark.slow  # tests/e2e kills real runs of the synchronous modes.
@pytest.mark.parametrize(("update", "workers"), [("sync", 2), ("async", 1)])
def test_it_equals_the_unbroken_training(cluster, update, workers, tmp_path):
    options = {"workers": workers, "epochs": 3, "shuffle": True, "strategy": {"update": update}}
    unbroken = cluster.train(dropout, ROWS, **options)
    first = cluster.prepare(dropout, ROWS, max_steps=CUT, **options)
    keep(first, tmp_path)
    first.run()
    run = cluster.prepare(dropout, ROWS, **options)
    state = go_on(run, tmp_path)
    assert (state.batches_seen, state.step_in_epoch) == (CUT, CUT % 5)
    run.run()
    for mine, theirs in zip(run.weights, unbroken.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6, rtol=0)
    for key, values in run.history.items():
        assert values == pytest.approx(unbroken.history[key][1:], abs=1e-6), key
    assert run.state.batches_seen == run.loop.store.num_updates == 15
    assert run.state.examples_seen == unbroken.state.examples_seen


@pytest.mark.parametrize(
    "form", ["arrays", *(pytest.param(f, marks=pytest.mark.slow) for f in ("stream", "py_dataset"))]
)
def test_asynchronous_workers_go_on_with_the_rows_that_are_left(cluster, form, tmp_path):
    make, settings = FORMS[form]
    data = {"train": make()}
    options = {"workers": 3, "epochs": 3, "shuffle": True, **settings}
    steps = cluster.prepare(build, data, **options).trainer._plan.steps_per_epoch
    first = cluster.prepare(build, data, max_steps=steps + 3, **options)
    keep(first, tmp_path)
    first.run()
    run = cluster.prepare(build, data, **options)
    state = go_on(run, tmp_path)
    assert (state.batches_seen, state.step_in_epoch) == (steps + 3, 3)
    passes = []
    run.trainer._reporter = Recorder(lambda: passes.append(seen_counts(run.model)))
    run.run()
    assert run.state.batches_seen == run.loop.store.num_updates == 3 * steps
    assert run.state.examples_seen == 3 * NUM_ROWS
    assert len(passes) == 2
    for counts in passes:
        np.testing.assert_array_equal(counts, 1)


def test_callbacks_metrics_csv_and_history_go_on(cluster, tmp_path, monkeypatch):
    """With one worker all is as sure as in one process: every row of metrics.csv is compared."""
    monkeypatch.setattr(training_run, "make_strategy", lambda *_, **__: cluster.strategy(1))
    servers = {TaskType.CHIEF: 1, TaskType.WORKER: 1, TaskType.PS: 2}
    options = {
        "spec": ClusterSpec({kind: ("127.0.0.1:1",) * num for kind, num in servers.items()}),
        "strategy": {"name": "ps"},
        "cluster": {"workers": 1, "ps": 2},
        "epochs": 12,
        "checkpoint": {"every_steps": 1, "every_epochs": None},
    }
    _, unbroken = run(tmp_path / "unbroken", dense(adam), ROWS, callbacks=plateau(), **options)
    assert unbroken.result["batches_seen"] < 12 * 5  # They did something.
    assert len({row["learning_rate"] for row in unbroken.rows}) > 1
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        run(folder, dense(adam), ROWS, callbacks=[*plateau(), DiesAt(17)], **options)
    _, left = run(folder, dense(adam), ROWS, callbacks=plateau(), **options)
    assert left.result["resumed_from_step"] == 16
    assert_same_run(left, unbroken)
