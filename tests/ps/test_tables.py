"""Large embedding tables stay on their server, and train as plain Keras trains them."""

import keras
import numpy as np
import pytest

from tests.engine.harness import assert_same, fit

NUM_IDS, WIDTH = 16_384, 8  # 512 KiB: large enough to stay.
L = keras.layers


def momentum(**options):
    return keras.optimizers.SGD(0.5, momentum=0.9, **options)


def shared_table(optimizer=momentum):
    """A table that two inputs look up, with a mask."""

    def build():
        a = keras.Input((5,), dtype="int32", name="a")
        b = keras.Input((3,), dtype="int32", name="b")
        table = L.Embedding(NUM_IDS, WIDTH, mask_zero=True, name="table")
        means = [L.GlobalAveragePooling1D()(table(ids)) for ids in (a, b)]
        model = keras.Model({"a": a, "b": b}, L.Dense(3, "softmax")(L.concatenate(means)))
        model.compile(optimizer(), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return build


class Tied(L.Layer):
    """Reads a table whole, as an output of as many classes as it has rows."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, inputs):
        return keras.ops.matmul(inputs, keras.ops.transpose(self.table.embeddings))


def tied_table():
    ids = keras.Input((5,), dtype="int32")
    table = L.Embedding(NUM_IDS, WIDTH)
    model = keras.Model(ids, Tied(table)(L.GlobalAveragePooling1D()(table(ids))))
    model.compile(momentum(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def rows(num_rows=29):
    """Return ids that occur in many rows, and ids of one row only."""
    rng = np.random.default_rng(4)
    common = rng.integers(1, 9, size=(num_rows, 8))
    ids = np.where(rng.random((num_rows, 8)) < 0.5, common, rng.integers(1, NUM_IDS, (num_rows, 8)))
    ids[:, 4] = 0
    ids = ids.astype("int32")
    return {"a": ids[:, :5], "b": ids[:, 5:]}, rng.integers(0, 3, num_rows).astype("int32")


def tables_of(run):
    return run.loop._step._lookups.tables


IN_PIECES = {"strategy": {"partition_bytes": 100_000}}


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (momentum, {"steps_per_execution": 4}),
        (momentum, {"jit_compile": True}),
        (lambda: momentum(global_clipnorm=0.05), {}),
        (momentum, IN_PIECES),
        (lambda: momentum(global_clipnorm=0.05), IN_PIECES),
    ],
    ids=["momentum", "jit", "global_clipnorm", "pieces", "pieces_clipped"],
)
def test_a_table_that_only_embeddings_read_stays(cluster, optimizer, settings):
    x, y = rows()
    data = {"train": (x, y), "validation": (x, y)}
    run = cluster.prepare(shared_table(optimizer), data, **settings)
    [table] = tables_of(run)
    assert (len(table.layers), table.num_calls) == (1, 2)
    assert_same(run.run(), fit(shared_table(optimizer), data))


def sum_of_outputs(y_true, y_pred):
    return keras.ops.sum(y_pred, axis=-1)


def test_many_workers_lose_no_row(cluster):
    """With a learning rate of a power of two and plain SGD, every looked-up row moves exactly."""
    num_rows = 160

    def build():
        ids = keras.Input((2,), dtype="int32")
        table = L.Embedding(NUM_IDS, WIDTH, name="table")
        total = L.Lambda(lambda found: keras.ops.sum(found, axis=(1, 2))[:, None])(table(ids))
        model = keras.Model(ids, total)
        model.compile(keras.optimizers.SGD(2.0**-6), loss=sum_of_outputs)
        return model

    ids = np.stack([np.arange(num_rows), np.full(num_rows, NUM_IDS - 1)], axis=1).astype("int32")
    data = {"train": (ids, np.zeros((num_rows, 1), "float32"))}
    run = cluster.prepare(build, data, workers=3, steps_per_execution=4, epochs=2)
    assert len(tables_of(run)) == 1
    before = run.model.get_layer("table").embeddings.numpy().copy()
    run.run()
    moved = before - run.model.get_layer("table").embeddings.numpy()
    # Each row of a batch of 8 weighs an eighth; the common id is in all of them.
    np.testing.assert_allclose(moved[:num_rows], 2 * 2.0**-6 / 8, atol=1e-6)
    np.testing.assert_allclose(moved[-1], 2 * num_rows / 8 * 2.0**-6, atol=1e-5)
    assert not moved[num_rows:-1].any()


@pytest.mark.parametrize("settings", [{}, IN_PIECES], ids=["whole", "pieces"])
def test_a_table_that_is_read_whole_travels_whole(cluster, settings):
    x, _ = rows()
    data = {"train": (x["a"], x["a"][:, 0])}
    run = cluster.prepare(tied_table, data, **settings)
    assert tables_of(run) == ()
    assert_same(run.run(), fit(tied_table, data))
