"""A checkpoint goes from servers to one process, from there to servers, and to other servers."""

import pathlib

import keras
import numpy as np
import pytest

from kdist.distribute.buckets.held_values import Held
from kdist.training.checkpoints import canonical, files, shards
from kdist.training.checkpoints.arrays import Streamed
from kdist.training.checkpoints.canonical import capture, restore
from kdist.training.checkpoints.folder import CheckpointFolder, CheckpointWriteError
from kdist.training.checkpoints.format import read_checkpoint
from kdist.training.checkpoints.shards import SharedFolder
from tests.engine.cases import CASES, ROWS, adam, dense
from tests.engine.harness import fit, numpy_weights, prepare
from tests.ps.kept_tables import BY_ROWS, KEPT, Tables, saved_by_servers, train

NUM_STEPS = 20  # Four epochs of five batches.


def decaying():
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.8)
    return keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.9)


def prepared(cluster, mode, build, data):
    """Return a training in a mode: `single`, or `ps` and the number of its servers."""
    if mode == "single":
        return prepare(build, data).engine
    return cluster.prepare(build, data, workers=1, ps=int(mode.removeprefix("ps"))).engine


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


@pytest.fixture
def tables(cluster, monkeypatch):
    return Tables(cluster, monkeypatch)


@pytest.mark.parametrize("where", ["local", pytest.param("ram", marks=pytest.mark.slow)])
def test_servers_write_their_tables_while_steps_go_on(tables, tmp_path, where):
    folder = f"ram://{tmp_path}" if where == "ram" else str(tmp_path)
    saved = saved_by_servers(tables, folder)
    saved.verify()
    sharded = {name: entry.shards for name, entry in saved.entries.items() if entry.shards}
    assert len(sharded) == 3  # Adam's slots, too.
    assert all(len(shards) == 2 * 3 for shards in sharded.values())  # Of 2500 rows each.
    names = files.names(saved.folder)
    assert len(names) == 3 * 6 * 2 + 2  # No probe is left, nor anything else.
    assert files.size_of(f"{saved.folder}/arrays.bin") < 5000
    unbroken = tables.after(tables.prepare(2, BY_ROWS), 0, 9)
    others = ((1, KEPT), (0, BY_ROWS)) if where == "local" else ((2, KEPT), (2, BY_ROWS))
    for servers, settings in others:
        other = tables.prepare(servers, settings)
        model, store = other.engine.structure.model, other.engine.loop.store
        restore(model, store, saved.read, read_blocks=saved.read_blocks)
        found = tables.after(other, 4, 5)
        for name, value in unbroken.items():
            np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


def test_a_broken_shard_is_named_and_its_checkpoint_skipped(tables, tmp_path):
    saved = saved_by_servers(tables, str(tmp_path))
    shard = saved.entries["variables/0"].shards[1].file
    for ending in (".index", ".data-00000-of-00001"):
        path = pathlib.Path(saved.folder) / f"{shard}{ending}"
        content = path.read_bytes()
        for damaged in (content[:-9] + b"?" * 9, content[:-9], None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            broken = []
            assert CheckpointFolder(str(tmp_path)).newest_whole(broken.append) is None
            assert shard in broken[0]
        path.write_bytes(content)
    assert CheckpointFolder(str(tmp_path)).newest_whole(broken.append) is not None


def test_servers_that_do_not_see_the_folder_hand_their_tables_to_the_chief(
    tables, tmp_path, monkeypatch
):
    monkeypatch.setattr(shards, "can_read", lambda variable, path, content: False)
    run, said = tables.prepare(2), []
    shared = SharedFolder(said.append)
    for step in (1, 2):
        taken = capture(run.model, run.loop.store, copy_bytes=1 << 20, shared=shared)
        written = CheckpointFolder(str(tmp_path)).save(step, taken(), {})
        assert files.names(written.path) == ["arrays.bin", "checkpoint.json"]
    [sentence] = said
    assert sentence.startswith(f"ps-0, ps-1 cannot write into {tmp_path},")


def test_a_server_that_cannot_write_leaves_nothing(tables, tmp_path, monkeypatch):
    save = Held.save

    def full(held, path, first, end):
        save(held, f"{tmp_path}/file/x" if first else path, first, end)
        if first:
            save(held, f"{tmp_path}/file/x", first, end)

    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(Held, "save", full)
    run = tables.prepare(2)
    taken = capture(run.model, run.loop.store, shared=SharedFolder(lambda text: None))
    with pytest.raises(CheckpointWriteError, match="step-000000001 cannot be written"):
        CheckpointFolder(str(tmp_path / "kept")).save(1, taken(), {})
    assert files.names(str(tmp_path / "kept")) == []


def test_tables_are_copied_only_where_there_is_room(tables):
    run = tables.prepare(2)
    needed = 3 * 2500 * 8 * 4  # The table and Adam's two slots, of one server.
    for copy_bytes, is_live in ((needed, False), (needed - 1, True), (0, True)):
        assert capture(run.model, run.loop.store, copy_bytes=copy_bytes).is_live == is_live


def test_what_the_first_checkpoint_would_wait_for_is_done_before(tables, monkeypatch):
    run, written = tables.prepare(2), []
    monkeypatch.setattr(canonical, "write_no_rows", lambda pieces: written.append(len(pieces)))
    canonical.prepare(run.model, run.loop.store, copy_bytes=1 << 20)
    assert written == [2, 2, 2]  # The table and Adam's two slots, each on two servers.


def test_a_table_that_only_servers_hold_passes_through_in_blocks(tables, tmp_path):
    half = tables.prepare(2)
    train(half.engine, 0, 4)
    taken = capture(half.model, half.loop.store)
    assert taken.is_live
    assert sum(isinstance(value, Streamed) for _, value in taken()) == 3
    written = CheckpointFolder(str(tmp_path)).save(4, taken(), {})
    saved = read_checkpoint(written.path)
    saved.verify()
    unbroken = tables.after(tables.prepare(2, BY_ROWS), 0, 9)
    other = tables.prepare(1)
    restore(other.model, other.loop.store, saved.read, read_blocks=saved.read_blocks)
    found = tables.after(other, 4, 5)
    for name, value in unbroken.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
