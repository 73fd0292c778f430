"""What a run does not go on from: refused before anything is changed, or begun anew by force."""

import keras
import numpy as np
import pytest

from kdist.errors import ConfigError
from kdist.training.report.metrics_csv import read_metrics

from .cases import ROWS, L, adam, dense, sgd
from .runs import DiesAt, Killed, run
from .test_resume import dropout, slow


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"batch_size": 4}}, "data.batch_size was 8, is 4"),
        slow({"seed": 1}, "seed was 0, is 1"),
        ({"build": dense(sgd)}, "class was Adam, is SGD"),
        slow({"build": dense(lambda: keras.optimizers.Adam(0.5))}, "learning_rate was 0.0"),
        slow(
            {"rows": {**ROWS, "train": (ROWS["train"][0] + 1, ROWS["train"][1])}}, "training rows"
        ),
    ],
)
def test_another_model_data_or_optimizer_is_refused_with_the_difference(change, message, tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, dense(adam), ROWS, callbacks=[DiesAt(6)])
    build, rows = change.pop("build", dense(adam)), change.pop("rows", ROWS)
    config = (tmp_path / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, build, rows, **change)
    assert (tmp_path / "config.yaml").read_text() == config
    code, left = run(tmp_path, build, rows, resume_force=True, **change)
    assert code == 0
    assert left.result["status"] == "completed"
    assert len(left.rows) == 2


def contents(folder):
    return {
        path.relative_to(folder): path.name == ".lock" or path.is_dir() or path.read_bytes()
        for path in folder.rglob("*")
    }


def test_a_changed_model_is_refused_even_by_force(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, dense(adam), ROWS, callbacks=[DiesAt(6)])
    before = contents(tmp_path)
    for build in (dropout, one_layer):
        with pytest.raises(ConfigError, match="does not fit the model: variable"):
            run(tmp_path, build, ROWS, resume_force=True)
    assert contents(tmp_path) == before


def one_layer():
    model = keras.Sequential([keras.Input((6,)), L.Dense(3)])
    model.compile(adam(), loss="sparse_categorical_crossentropy")
    return model


def test_an_optimizer_with_further_slots_begins_anew_by_force(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, dense(adam), ROWS, callbacks=[DiesAt(6)])
    other = dense(lambda: keras.optimizers.Adam(0.01, amsgrad=True))
    code, left = run(tmp_path, other, ROWS, resume_force=True)
    assert (code, left.result["resumed_from_step"]) == (0, 5)


@pytest.mark.parametrize("resume", ["first", "nowhere", "empty", "broken", "by force"])
def test_a_run_that_is_refused_leaves_no_folder(resume, tmp_path):
    run(tmp_path / "first", dense(adam), ROWS, epochs=2)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken" / "checkpoints" / "step-000000005").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    build, more = dense(adam), {"epochs": 1}
    if resume == "by force":
        build, more = dropout, {"resume_force": True}
    named = tmp_path / ("first" if resume == "by force" else resume)
    for place in ("new/run", "mine"):
        with pytest.raises(ConfigError):
            run(tmp_path / place, build, ROWS, resume=str(named), **more)
    assert contents(tmp_path) == before


def test_weights_of_a_smaller_model_are_no_start(tmp_path):
    def two_layers():
        model = keras.Sequential([keras.Input((6,)), L.Dense(3), L.Dense(3)])
        model.compile(adam(), loss="sparse_categorical_crossentropy")
        return model

    run(tmp_path / "first", one_layer, ROWS, epochs=1)
    (saved,) = (tmp_path / "first" / "checkpoints").iterdir()
    with pytest.raises(ConfigError, match=r"no value for variable .*dense"):
        run(tmp_path / "second", two_layers, ROWS, init_from=str(saved))
    assert not (tmp_path / "second").exists()


def test_a_new_run_is_refused_where_checkpoints_of_another_are_further(tmp_path):
    run(tmp_path / "first", dense(adam), ROWS, epochs=2)
    elsewhere = str(tmp_path / "first" / "checkpoints")
    with pytest.raises(ConfigError, match=f"already trained further.*checkpoint.dir={elsewhere}"):
        run(tmp_path / "second", dense(adam), ROWS, epochs=1, checkpoint={"dir": elsewhere})
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("{path}/file/checkpoints", "Not a directory"),
        ("{path}/file", "File exists"),
        ("/proc/none", "No such file"),
        ("nowhere://bucket/checkpoints", "'nowhere' not implemented"),
    ],
    ids=["below a file", "a file", "where no folder can be made", "unknown file system"],
)
def test_where_no_checkpoints_can_go_nothing_is_trained(tmp_path, place, reason):
    (tmp_path / "file").write_text("mine")
    place = place.format(path=tmp_path)
    with pytest.raises(ConfigError, match=f"cannot be written: .*{reason}.*checkpoint.dir={place}"):
        run(tmp_path / "run", dense(adam), ROWS, epochs=1, checkpoint={"dir": place})
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "file").read_text() == "mine"


def test_an_epoch_begins_anew_with_other_batches_by_force(tmp_path):
    run(tmp_path, dense(adam), ROWS, epochs=3, max_steps=7)
    data = {"batch_size": 7}  # As many batches an epoch, of other rows.
    _, left = run(tmp_path, dense(adam), ROWS, epochs=3, resume_force=True, data=data)
    assert [row["global_step"] for row in left.rows] == [5, 12, 17]
    assert left.rows[1]["examples"] == left.rows[0]["examples"]


@pytest.mark.parametrize("devices", [1, 2])
def test_another_learning_rate_takes_effect_by_force_and_slots_stay(tmp_path, devices):
    def slower():
        return keras.optimizers.Adam(0.002)

    run(tmp_path / "forced", dense(adam), ROWS, epochs=1, devices=devices)
    forced = {"epochs": 2, "resume_force": True, "devices": devices}
    _, left = run(tmp_path / "forced", dense(slower), ROWS, **forced)
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.002 if epoch else rate)
    _, wanted = run(tmp_path / "told", dense(adam), ROWS, callbacks=[schedule], devices=devices)
    assert [row["learning_rate"] for row in left.rows] == pytest.approx([0.01, 0.002])
    for a, b in zip(left.weights, wanted.weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_only_the_rates_that_were_given_anew_are_set_by_force(tmp_path):
    """What callbacks have come to is kept elsewhere."""

    def two(rate):
        kernels = {".*kernel": keras.optimizers.SGD(rate)}
        by_name = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.05), kernels)
        return lambda: keras.optimizers.MultiOptimizer(by_name)

    class Rates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            parts = self.model.optimizer.optimizers
            if epoch == 0:
                for each in parts:
                    each.learning_rate = 0.03
            logs["lowest"], logs["highest"] = sorted(float(each.learning_rate) for each in parts)

    run(tmp_path, dense(two(0.1)), ROWS, epochs=1, callbacks=[Rates()])
    again = {"epochs": 2, "callbacks": [Rates()], "resume_force": True}
    _, left = run(tmp_path, dense(two(0.2)), ROWS, **again)
    row = read_metrics(left.path / "metrics.csv")[-1]
    assert [row["lowest"], row["highest"]] == pytest.approx([0.03, 0.2])


def test_never_refuses_a_used_folder(tmp_path):
    run(tmp_path, dense(adam), ROWS, epochs=1)
    with pytest.raises(ConfigError, match="already holds a run"):
        run(tmp_path, dense(adam), ROWS, epochs=2, resume="never")
