"""A run that was ended anywhere and started again is the run that it would have been."""

import json

import keras
import pytest

from .cases import ROWS, L, adam, dense
from .runs import DiesAt, Killed, StopsAfter, assert_same_run, run

C = keras.callbacks


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


EVERY_STEP = {"checkpoint": {"every_steps": 1, "every_epochs": None}}


def dropout():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(8, activation="tanh"),
            L.BatchNormalization(),
            L.Dropout(0.3),
            L.Dense(3),
        ]
    )
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.8)
    model.compile(
        keras.optimizers.Adam(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


@pytest.mark.parametrize(
    ("devices", "died_at"),  # An epoch has five batches.
    [(1, 3), (2, 8), *(slow(*each) for each in ((1, 5), (1, 8), (2, 3), (2, 5)))],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(devices, died_at, tmp_path):
    options = {"devices": devices, "epochs": 3, **EVERY_STEP}
    _, unbroken = run(tmp_path / "unbroken", dropout, ROWS, **options)
    with pytest.raises(Killed):
        run(tmp_path / "run", dropout, ROWS, callbacks=[DiesAt(died_at)], **options)
    code, left = run(tmp_path / "run", dropout, ROWS, **options)
    assert code == 0
    assert_same_run(left, unbroken)
    assert left.result["resumed_from_step"] == died_at - 1
    assert left.result["status"] == "completed"


def plateau():
    return [
        C.EarlyStopping(monitor="val_loss", patience=4, min_delta=0.5, restore_best_weights=True),
        C.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=2, min_delta=0.5, cooldown=1),
    ]


@pytest.mark.parametrize("died_at", [9, slow(21)])
def test_callbacks_remember(died_at, tmp_path):
    options = {"epochs": 12, **EVERY_STEP}
    _, unbroken = run(tmp_path / "unbroken", dense(adam), ROWS, callbacks=plateau(), **options)
    assert unbroken.result["batches_seen"] < 12 * 5  # They did something.
    assert len({row["learning_rate"] for row in unbroken.rows}) > 1
    with pytest.raises(Killed):
        run(
            tmp_path / "run",
            dense(adam),
            ROWS,
            callbacks=[*plateau(), DiesAt(died_at)],
            **options,
        )
    _, left = run(tmp_path / "run", dense(adam), ROWS, callbacks=plateau(), **options)
    assert_same_run(left, unbroken)


def test_a_stop_that_callbacks_asked_for_outlasts_a_kill(tmp_path):
    options = {"epochs": 9, "callbacks": [C.EarlyStopping("loss", patience=1, min_delta=9.0)]}
    run(tmp_path / "unbroken", dense(adam), ROWS, **options)
    for name in ("result.json", "model.keras"):
        (tmp_path / "unbroken" / name).rename(tmp_path / name)
    _, left = run(tmp_path / "unbroken", dense(adam), ROWS, **options)
    assert left.result["batches_seen"] == 10
    assert len(left.rows) == 2


def test_sigterm_saves_the_very_step_and_the_epoch_goes_on(tmp_path):
    _, unbroken = run(tmp_path / "unbroken", dropout, ROWS, epochs=3)
    code, stopped = run(tmp_path / "run", dropout, ROWS, epochs=3, signals=StopsAfter(3))
    assert code == 143
    assert stopped.result["status"] == "stopped"
    seen = stopped.result["batches_seen"]
    assert stopped.steps[-1] == seen
    code, left = run(tmp_path / "run", dropout, ROWS, epochs=3)
    assert code == 0
    assert left.result["resumed_from_step"] == seen
    assert_same_run(left, unbroken)


def test_a_finished_run_is_left_alone_and_more_epochs_go_on_with_it(tmp_path, capsys):
    _, unbroken = run(tmp_path / "unbroken", dropout, ROWS, epochs=4)
    run(tmp_path / "run", dropout, ROWS, epochs=2)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.is_file()}
    code, left = run(tmp_path / "run", dropout, ROWS, epochs=2)
    assert code == 0
    assert "is finished" in capsys.readouterr().out
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.is_file()}
    code, left = run(tmp_path / "run", dropout, ROWS, epochs=4)
    assert code == 0
    assert left.result["resumed_from_step"] == 10
    assert_same_run(left, unbroken)


def test_an_epoch_that_max_steps_cut_is_taken_up_again(tmp_path):
    _, unbroken = run(tmp_path / "unbroken", dropout, ROWS, epochs=3)
    _, cut = run(tmp_path / "run", dropout, ROWS, epochs=3, max_steps=7)
    assert cut.result["batches_seen"] == 7
    assert [row["global_step"] for row in cut.rows] == [5, 7]
    _, left = run(tmp_path / "run", dropout, ROWS, epochs=3)
    assert_same_run(left, unbroken)


def test_a_broken_newest_one_is_named_and_the_one_before_is_used(tmp_path):
    _, unbroken = run(tmp_path / "unbroken", dropout, ROWS, epochs=3)
    with pytest.raises(Killed):
        at_once = {"async": False}  # The newest one is there when the run dies.
        run(tmp_path / "run", dropout, ROWS, epochs=3, callbacks=[DiesAt(12)], checkpoint=at_once)
    newest = tmp_path / "run" / "checkpoints" / "step-000000010" / "arrays.bin"
    newest.write_bytes(newest.read_bytes()[:100])
    _, left = run(tmp_path / "run", dropout, ROWS, epochs=3)
    assert left.result["resumed_from_step"] == 5
    assert any("step-000000010" in warning for warning in left.result["warnings"])
    assert_same_run(left, unbroken)


def test_a_run_that_died_before_its_first_checkpoint_begins_anew(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, dropout, ROWS, callbacks=[DiesAt(2)])
    _, left = run(tmp_path, dropout, ROWS)
    assert left.result["resumed_from_step"] is None
    assert left.result["status"] == "completed"


def test_an_attempt_goes_on_whatever_resume_says(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, dropout, ROWS, callbacks=[DiesAt(7)], resume="never")
    _, left = run(tmp_path, dropout, ROWS, resume="never", attempt=1, may_rename=True)
    assert left.result["resumed_from_step"] == 5
    assert left.result["restarts"] == 1
    assert len(left.events("run_resumed")) == 1


def test_a_named_checkpoint_begins_a_run_of_its_own(tmp_path):
    _, unbroken = run(tmp_path / "first", dropout, ROWS, epochs=3)
    one = tmp_path / "first" / "checkpoints" / "step-000000005"
    _, left = run(tmp_path / "second", dropout, ROWS, epochs=3, resume=str(one))
    assert left.result["resumed_from_step"] == 5
    assert_same_run(left, unbroken)
    # The same folder, once more: back to that step.
    _, again = run(tmp_path / "first", dropout, ROWS, epochs=3, resume=str(one))
    assert again.result["status"] == "completed"


@pytest.mark.parametrize("hook", ["on_epoch_end", slow("on_train_batch_end")])
def test_an_error_in_a_callback_saves_the_state_first(hook, tmp_path):
    class Fails(C.Callback):
        pass

    def fail(self, index, logs=None):
        if index == 1:
            raise ValueError("mine")

    setattr(Fails, hook, fail)
    options = {"epochs": 3, "checkpoint": {"every_epochs": 3}}
    _, unbroken = run(tmp_path / "unbroken", dropout, ROWS, **options)
    with pytest.raises(ValueError, match="mine"):
        run(tmp_path / "run", dropout, ROWS, callbacks=[Fails()], **options)
    assert json_of(tmp_path / "run" / "result.json")["status"] == "failed"
    _, left = run(tmp_path / "run", dropout, ROWS, **options)
    assert left.result["resumed_from_step"] == (10 if hook == "on_epoch_end" else 2)
    assert_same_run(left, unbroken)


class Failing(keras.utils.PyDataset):
    """Batches of rows; batch 3 of the second epoch cannot be read unless a file is there."""

    def __init__(self, repaired):
        super().__init__()
        self._repaired = repaired
        self._num_read = 0

    def __len__(self):
        return 5

    def __getitem__(self, index):
        self._num_read += index == 3
        if index == 3 and self._num_read == 2 and not self._repaired.exists():
            raise ValueError("unreadable")
        x, y = ROWS["train"]
        return x[index * 6 : (index + 1) * 6], y[index * 6 : (index + 1) * 6]


@pytest.mark.parametrize("devices", [1, slow(2)])
def test_an_error_in_the_data_saves_the_steps_before_it(devices, tmp_path):
    repaired = tmp_path / "repaired"
    parts = {"train": Failing(repaired)}
    settings = {"epochs": 3, "devices": devices, "data": {"shuffle": False}}
    settings["checkpoint"] = {"every_epochs": 3}
    with pytest.raises(Exception, match="unreadable"):
        run(tmp_path / "run", dropout, parts, **settings)
    repaired.touch()
    _, unbroken = run(tmp_path / "unbroken", dropout, parts, **settings)
    _, left = run(tmp_path / "run", dropout, parts, **settings)
    assert left.result["resumed_from_step"] == 8
    assert_same_run(left, unbroken)


def json_of(path):
    return json.loads(path.read_text())


def test_best_names_a_checkpoint_that_is_there(tmp_path):
    _, left = run(tmp_path, dense(adam), ROWS, epochs=6, callbacks=[C.EarlyStopping(patience=9)])
    best = left.result["best"]
    assert best["checkpoint"] is not None
    state = json_of(
        tmp_path / "checkpoints" / best["checkpoint"].split("/")[-1] / "checkpoint.json"
    )
    assert state["state"]["epoch_row"]["epoch"] == best["epoch"]


def test_every_checkpoint_is_an_event_with_its_pause(tmp_path):
    _, left = run(tmp_path, dense(adam), ROWS, checkpoint={"every_steps": 2, "every_epochs": 1})
    saved = left.events("checkpoint_saved")
    assert [event["step"] for event in saved] == [2, 4, 5, 6, 8, 10]
    for event in saved:
        assert event["pause_s"] >= 0
        assert event["write_s"] > 0
        assert event["bytes"] > 1000


def test_without_checkpoints_none_are_written(tmp_path):
    never = {"every_steps": None, "every_epochs": None, "every_seconds": None}
    run(tmp_path, dense(adam), ROWS, checkpoint=never)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("is_async", [True, slow(False)])
def test_a_full_disk_ends_the_run_and_leaves_the_last_good_one(is_async, tmp_path, monkeypatch):
    from kdist.training.checkpoints import folder as module

    write, calls = module.write_checkpoint, []

    def full(*arguments):
        calls.append(1)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(module, "write_checkpoint", full)
    with pytest.raises(module.CheckpointWriteError, match="No space left"):
        run(tmp_path, dense(adam), ROWS, epochs=3, checkpoint={"async": is_async})
    result = json_of(tmp_path / "result.json")
    assert result["status"] == "failed"
    assert "No space left" in result["error"]["message"]
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-000000005"]


@pytest.mark.parametrize(("first", "then"), [(1, 2), slow(2, 1)])
def test_one_device_goes_on_with_what_two_began_and_the_other_way_round(first, then, tmp_path):
    options = {"epochs": 3, "checkpoint": {"every_steps": 1}}
    _, unbroken = run(tmp_path / "unbroken", dense(adam), ROWS, devices=first, **options)
    with pytest.raises(Killed):
        run(tmp_path / "run", dense(adam), ROWS, devices=first, callbacks=[DiesAt(8)], **options)
    _, left = run(tmp_path / "run", dense(adam), ROWS, devices=then, **options)
    assert left.result["resumed_from_step"] == 7
    assert_same_run(left, unbroken, tolerance=1e-5)
