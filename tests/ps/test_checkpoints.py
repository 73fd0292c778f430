"""A checkpoint goes from servers to one process, from there to servers, and to other servers."""

import keras
import numpy as np
import pytest

from kdist.training.checkpoints import canonical, large_tables
from kdist.training.checkpoints.canonical import capture, restore
from kdist.training.checkpoints.folder import CheckpointFolder
from kdist.training.checkpoints.format import Streamed, read_checkpoint
from tests.engine.cases import CASES, ROWS, adam, dense
from tests.engine.harness import fit, numpy_weights, prepare

NUM_STEPS = 20  # Four epochs of five batches.


def decaying():
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.8)
    return keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.9)


def prepared(cluster, mode, build, data):
    """Return a training in a mode: `single`, or `ps` and the number of its servers."""
    if mode == "single":
        return prepare(build, data).engine
    return cluster.prepare(build, data, workers=1, ps=int(mode.removeprefix("ps"))).engine


def train(engine, first_step, num_steps):
    engine.loop.train(first_step, num_steps, steps_per_call=1, on_progress=lambda done: False)


MODES = [("single", "ps2"), ("ps2", "single"), ("ps2", "ps1"), ("ps1", "ps2")]
FAST = {("adam", 0), ("adam", 1), ("decaying", 2), ("embedding", 3)}
EVERY = [
    pytest.param(name, *mode, marks=() if (name, index) in FAST else pytest.mark.slow)
    for name in ("adam", "decaying", "embedding")
    for index, mode in enumerate(MODES)
]


@pytest.mark.parametrize(("name", "first", "then"), EVERY)
def test_it_goes_on_as_plain_keras_would(cluster, name, first, then):
    build = {"adam": dense(adam), "decaying": dense(decaying)}.get(
        name, CASES["masked_steps"].build
    )
    data = CASES["masked_steps"].data if name == "embedding" else ROWS
    reference = fit(build, data, epochs=4)
    num_steps = 4 * -(-len(data["train"][1]) // 8)
    half = prepared(cluster, first, build, data)
    train(half, 0, 7)
    state = dict(capture(half.structure.model, half.loop.store)())

    other = prepared(cluster, then, build, data)
    model, store = other.structure.model, other.loop.store
    for variable in model.trainable_variables:
        variable.assign(variable + 1.0)  # Nothing of it may shine through.
    restore(model, store, state.__getitem__)
    assert store.num_updates == 7
    again = dict(capture(model, store)())
    assert sorted(again) == sorted(state)
    for key, value in state.items():
        np.testing.assert_array_equal(again[key], value, err_msg=key)

    train(other, 7, num_steps - 7)
    assert store.num_updates == num_steps
    for optimizer in store.optimizers:
        optimizer.finalize()
    store.write_to_model()
    for mine, theirs in zip(numpy_weights(model), reference.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def embedded(num_ids=5000):
    def build():
        ids = keras.Input((2,), dtype="int32")
        vector = keras.layers.Flatten()(keras.layers.Embedding(num_ids, 8)(ids))
        model = keras.Model(ids, keras.layers.Dense(3)(vector))
        model.compile(adam(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return build


def test_a_table_that_only_servers_hold_passes_through_in_blocks(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(large_tables, "_BLOCK_BYTES", 700 * 32)  # 5000 rows are no multiple.
    monkeypatch.setattr(canonical, "STREAMED_BYTES", 1000)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5000, size=(40, 2)).astype("int32")
    data = {"train": (x, (x[:, 0] % 3).astype("int32"))}
    kept = {"strategy": {"sparse": "rows", "gather_bytes": 0}}

    def prepare_on(servers, **settings):
        return cluster.prepare(embedded(), data, workers=1, ps=servers, **settings)

    def weights_after(run, first, num_steps):
        train(run.engine, first, num_steps)
        run.loop.store.write_to_model()
        return dict(capture(run.model, run.loop.store)())

    unbroken = weights_after(prepare_on(2, strategy={"sparse": "rows"}), 0, 9)
    half = prepare_on(2, **kept)
    train(half.engine, 0, 4)
    snapshot = capture(half.model, half.loop.store)
    assert snapshot.is_live
    assert sum(isinstance(value, Streamed) for _, value in snapshot()) == 3  # Adam's slots, too.
    written = CheckpointFolder(str(tmp_path)).save(4, snapshot(), {})
    saved = read_checkpoint(written.path)
    saved.verify()
    for servers, settings in ((1, kept), (2, kept), (2, {"strategy": {"sparse": "rows"}})):
        other = prepare_on(servers, **settings)
        restore(other.model, other.loop.store, saved.read, read_rows=saved.read_rows)
        found = weights_after(other, 4, 5)
        for name, value in unbroken.items():
            mine = found[name]
            if isinstance(mine, Streamed):
                mine = np.concatenate(list(mine.blocks()))
            np.testing.assert_allclose(mine, value, atol=1e-5, err_msg=name)
