"""Trainings of a table that only servers hold, and checkpoints of them."""

import keras
import numpy as np

from kdist.training.checkpoints import arrays, large_tables, snapshot
from kdist.training.checkpoints.arrays import Streamed
from kdist.training.checkpoints.canonical import capture
from kdist.training.checkpoints.folder import CheckpointFolder
from kdist.training.checkpoints.format import read_checkpoint
from kdist.training.checkpoints.shards import SharedFolder
from tests.engine.cases import adam
from tests.engine.harness import prepare

BY_ROWS = {"strategy": {"sparse": "rows"}}
KEPT = {"strategy": {"sparse": "rows", "gather_bytes": 0}}


def train(engine, first_step, num_steps):
    engine.loop.train(first_step, num_steps, steps_per_call=1, on_progress=lambda done: False)


def embedded(num_ids=5000):
    def build():
        ids = keras.Input((2,), dtype="int32")
        vector = keras.layers.Flatten()(keras.layers.Embedding(num_ids, 8)(ids))
        model = keras.Model(ids, keras.layers.Dense(3)(vector))
        model.compile(adam(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return build


class Tables:
    """Trainings of a table of 5000 rows, each from the same beginning, in small blocks."""

    def __init__(self, cluster, monkeypatch):
        monkeypatch.setattr(arrays, "_BLOCK_BYTES", 700 * 32)  # 5000 rows are no multiple.
        monkeypatch.setattr(large_tables, "SHARD_BYTES", 900 * 32)
        monkeypatch.setattr(snapshot, "STREAMED_BYTES", 1000)
        rng = np.random.default_rng(0)
        x = rng.integers(0, 5000, size=(40, 2)).astype("int32")
        self.data = {"train": (x, (x[:, 0] % 3).astype("int32"))}
        self._cluster = cluster

    def prepare(self, servers, settings=KEPT):
        if not servers:
            return prepare(embedded(), self.data, **BY_ROWS)
        return self._cluster.prepare(embedded(), self.data, workers=1, ps=servers, **settings)

    @staticmethod
    def after(run, first_step, num_steps):
        train(run.engine, first_step, num_steps)
        store = run.engine.loop.store
        store.write_to_model()
        return whole(capture(run.engine.structure.model, store))


def whole(taken):
    """Return all arrays of a snapshot."""
    return {
        name: np.concatenate(list(value.blocks())) if isinstance(value, Streamed) else value
        for name, value in taken()
    }


def saved_by_servers(tables, folder, say=None):
    """Return a checkpoint of step 4 that was written after further steps."""
    run = tables.prepare(2)
    train(run.engine, 0, 4)
    said = []
    shared = SharedFolder(say or said.append)
    taken = capture(run.model, run.loop.store, copy_bytes=1 << 20, shared=shared)
    assert not taken.is_live
    train(run.engine, 4, 2)  # Steps go on before anything is written.
    written = CheckpointFolder(folder).save(4, taken(), {})
    taken.release()
    assert said == []
    return read_checkpoint(written.path)
