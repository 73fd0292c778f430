"""Checkpoints of servers behind a session: few calls while training waits, whatever the model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute import values
from kdist.training.checkpoints.canonical import capture, prepare, restore
from tests.engine.harness import labelled_rows
from tests.ps.kept_tables import Tables, saved_by_servers


def deep(num_layers):
    def build():
        layers = [keras.layers.Dense(5, activation="relu") for _ in range(num_layers)]
        large = keras.layers.Dense(20_000)  # In pieces, on both servers.
        model = keras.Sequential([keras.Input((6,)), *layers, large, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.05), loss=loss)
        return model

    return build


@pytest.fixture
def calls(monkeypatch):
    """The fetches of every call of a session."""
    found = []
    run = tf.compat.v1.Session.run

    def counted(session, fetches, *args, **kwargs):
        found.append(fetches)
        return run(session, fetches, *args, **kwargs)

    monkeypatch.setattr(tf.compat.v1.Session, "run", counted)
    return found


def prepared(cluster, num_layers):
    data = {"train": labelled_rows()}
    return cluster.prepare(
        deep(num_layers), data, workers=1, ps=2, strategy={"partition_bytes": 100_000}
    )


def train(run, first_step, num_steps):
    run.loop.train(first_step, num_steps, steps_per_call=1, on_progress=lambda done: False)


@pytest.mark.parametrize("num_layers", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_it_is_taken_in_one_call_and_stays_as_it_was(cluster, calls, num_layers):
    run = prepared(cluster, num_layers)
    train(run, 0, 3)
    prepare(run.model, run.loop.store)
    calls.clear()
    taken = capture(run.model, run.loop.store)
    assert len(calls) == 1
    before = dict(taken())
    train(run, 3, 2)
    for name, value in taken():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    taken.release()
    now = dict(capture(run.model, run.loop.store)())
    assert any(not np.array_equal(now[name], value) for name, value in before.items())


def test_it_is_restored_in_few_calls(cluster, calls, monkeypatch):
    run = prepared(cluster, 3)
    train(run, 0, 3)
    before = dict(capture(run.model, run.loop.store)())
    train(run, 3, 2)
    num_calls = []
    for call_bytes in (values.CALL_BYTES, 400_000):
        monkeypatch.setattr(values, "CALL_BYTES", call_bytes)
        calls.clear()
        restore(run.model, run.loop.store, before.__getitem__)
        num_calls.append(len(calls))
        after = dict(capture(run.model, run.loop.store)())
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert num_calls[0] < 8 < num_calls[1]


def test_servers_write_their_tables_while_steps_go_on(cluster, tmp_path, monkeypatch):
    """They hold copies of them as they were, and what they write goes on in any mode."""
    tables = Tables(cluster, monkeypatch)
    saved = saved_by_servers(tables, str(tmp_path))
    saved.verify()
    assert sum(bool(entry.shards) for entry in saved.entries.values()) == 3  # Adam's slots, too.
    unbroken = tables.after(tables.prepare(0), 0, 9)
    for servers in (0, 1):
        other = tables.prepare(servers)
        store = other.engine.loop.store
        restore(other.engine.structure.model, store, saved.read, read_blocks=saved.read_blocks)
        found = tables.after(other, 4, 5)
        for name, value in unbroken.items():
            np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
