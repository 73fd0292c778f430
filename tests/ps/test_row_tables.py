"""`strategy.sparse=rows`: tables live on the servers only, in pieces, and change by rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.buckets import spilled, table_values
from kdist.errors import ConfigError
from kdist.training.saving import save_model
from tests.engine.harness import assert_same
from tests.engine.harness import train as train_alone
from tests.engine.test_row_tables import OPTIMIZERS, model_of, rows
from tests.ps.recorded import rows_by_step

L = keras.layers
BY_ROWS = {"strategy": {"sparse": "rows"}}
NUM_IDS, WIDTH = 20_000, 8


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in ("adagrad", "adam") else [pytest.mark.slow])
        for n in OPTIMIZERS
    ],
)
def test_servers_update_what_one_process_updates(cluster, name):
    build = model_of(OPTIMIZERS[name])
    data = {"train": rows(), "validation": rows(11)}
    run = cluster.prepare(build, data, steps_per_execution=4, **BY_ROWS)
    pieces = [b for b in run.engine.layout.buckets if b.is_by_rows]
    assert [len(run.engine.layout.of_server(index)) >= 2 for index in (0, 1)] == [True, True]
    assert len(pieces) == 4
    assert_same(run.run(), train_alone(build, data, **BY_ROWS))


def test_slots_come_back_by_variable(cluster, tmp_path):
    build = model_of(OPTIMIZERS["adam"])
    data = {"train": rows()}
    saved = []
    for run in (cluster.train(build, data, **BY_ROWS), train_alone(build, data, **BY_ROWS)):
        store = run.engine.loop.store
        save_model(run.model, store, run.bridge.view, tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        saved.append([v.numpy() for v in (*loaded.variables, *loaded.optimizer.variables)])
    for mine, theirs in zip(*saved, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@keras.saving.register_keras_serializable("kdist_tests")
def sum_of_outputs(y_true, y_pred):
    return keras.ops.sum(y_pred, axis=-1)


def only_a_table(optimizer=lambda: keras.optimizers.SGD(2.0**-6), num_ids=NUM_IDS, **options):
    def build():
        ids = keras.Input((2,), dtype="int32")
        table = L.Embedding(num_ids, WIDTH, name="table", **options)
        total = L.Dense(1, use_bias=False, kernel_initializer="ones", trainable=False)(
            L.Flatten()(table(ids))
        )
        model = keras.Model(ids, total)
        model.compile(optimizer(), loss=sum_of_outputs)
        return model

    return build


def numbered(num_rows, common_id=NUM_IDS - 1):
    ids = np.stack([np.arange(num_rows), np.full(num_rows, common_id)], axis=1)
    return ids.astype("int32"), np.zeros((num_rows, 1), "float32")


def test_many_workers_lose_no_row(cluster):
    """All gradients are 1; nothing but the table is trained, and no server holds a dense bucket."""
    num_rows = 160
    data = {"train": numbered(num_rows)}
    run = cluster.prepare(
        only_a_table(embeddings_initializer="zeros"),
        data,
        workers=3,
        steps_per_execution=4,
        **BY_ROWS,
    ).run()
    moved, _ = run.weights
    np.testing.assert_allclose(moved[:num_rows], -2 * 2.0**-6 / 8, atol=1e-6)
    np.testing.assert_allclose(moved[-1], -2 * num_rows / 8 * 2.0**-6, atol=1e-5)
    assert not moved[num_rows:-1].any()
    assert run.loop.store.num_updates == run.state.batches_seen == 2 * num_rows / 8


def test_the_chief_never_holds_a_table_above_the_limit(cluster, tmp_path, monkeypatch):
    """Its variable has no value before, during and after training, and the saved file has all."""
    monkeypatch.setattr(spilled, "SPILL_BYTES", 1000)
    monkeypatch.setattr(spilled, "_BLOCK_BYTES", 100_000)
    data = {"train": numbered(16), "validation": numbered(8)}
    settings = {"sparse": "rows", "gather_bytes": NUM_IDS * WIDTH * 4 - 1}
    build = only_a_table(lambda: keras.optimizers.Adagrad(0.5))
    run = cluster.prepare(build, data, strategy=settings)
    [table] = run.model.trainable_variables
    assert not keras_adapter.has_value(table)
    run.trainer.run()
    save_model(run.model, run.loop.store, run.bridge.view, tmp_path / "model.keras")
    assert not keras_adapter.has_value(table)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    expected = train_alone(build, data, **BY_ROWS)
    np.testing.assert_allclose(loaded.get_weights()[0], expected.weights[0], atol=1e-6)
    mine, theirs = loaded.optimizer.variables[2], expected.engine.loop.store.optimizer.slots[0]
    np.testing.assert_allclose(mine.numpy(), theirs.variable.numpy(), atol=1e-6)


@pytest.mark.parametrize("update", ["async", "sync"])
def test_an_id_outside_of_its_table_is_named(cluster, update):
    ids, y = numbered(16)
    ids[11, 0] = NUM_IDS
    settings = {"sparse": "rows", "update": update}
    run = cluster.prepare(only_a_table(), {"train": (ids, y)}, workers=2, strategy=settings)
    expected = rf"The embedding table has ids from 0 to {NUM_IDS - 1}\. Received: \[{NUM_IDS}\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
        run.trainer.run()


def test_what_a_callback_writes_into_a_table_reaches_the_servers(cluster):
    class Zero(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                [table] = self.model.trainable_variables
                table.assign(keras.ops.zeros_like(table))

    data = {"train": numbered(16)}
    run = cluster.prepare(only_a_table(), data, callbacks=[Zero()], **BY_ROWS).run()
    moved, _ = run.weights
    np.testing.assert_allclose(moved[:16], -(2.0**-6) / 8, atol=1e-7)
    assert not moved[16:-1].any()


def test_callbacks_that_read_weights_need_the_tables(cluster):
    data = {"train": numbered(16)}
    settings = {"sparse": "rows", "gather_bytes": 1000}
    callbacks = [keras.callbacks.History(), keras.callbacks.EarlyStopping("loss")]
    with pytest.raises(ConfigError, match=r"Received: EarlyStopping, .*gather_bytes: table\."):
        cluster.prepare(only_a_table(), data, callbacks=callbacks, strategy=settings)


@pytest.mark.parametrize("name", [pytest.param("adagrad", marks=pytest.mark.slow), "adam"])
def test_synchronous_workers_equal_one_process(cluster, name):
    """Several workers read the same id: their shares add up before they are clipped and applied."""
    build = model_of(OPTIMIZERS[name])
    data = {"train": rows(), "validation": rows(11)}
    settings = {"sparse": "rows", "update": "sync"}
    run = cluster.train(build, data, workers=2, strategy=settings)
    assert_same(run, train_alone(build, data, **BY_ROWS))


def test_each_update_is_the_mean_of_two_shares_of_three_workers(cluster):
    """What workers contributed, trained again by one process, gives these tables."""
    build = model_of(OPTIMIZERS["adam"])
    x, y = rows(32)
    settings = {"sparse": "rows", "update": "sync", "replicas_to_aggregate": 2}
    run = cluster.train(build, {"train": (x, y)}, workers=3, strategy=settings)
    order = np.concatenate(rows_by_step(run.loop.store.tallies.contributions.read().recent, 32, 2))
    assert len(order) == 2 * 32
    data = {"train": ({key: ids[order] for key, ids in x.items()}, y[order])}
    assert_same(run, train_alone(build, data, epochs=1, **BY_ROWS), history=False)


@pytest.mark.parametrize("update", ["async", "sync"])
def test_nobody_draws_a_whole_table(cluster, monkeypatch, update):
    """Servers draw blocks of 7 rows, and the chief builds and checks the model without values."""
    shapes = []
    monkeypatch.setattr(table_values, "BLOCK_ROWS", 7)
    draw = keras.initializers.RandomUniform.__call__

    def recorded(self, shape, *args, **options):
        shapes.append(tuple(shape))
        return draw(self, shape, *args, **options)

    monkeypatch.setattr(keras.initializers.RandomUniform, "__call__", recorded)
    settings = {"sparse": "rows", "update": update}
    cluster.prepare(model_of(OPTIMIZERS["adam"]), {"train": rows()}, workers=2, strategy=settings)
    assert max(num_rows for num_rows, _ in shapes) == 7
