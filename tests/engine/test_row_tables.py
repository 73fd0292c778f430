"""`strategy.sparse=rows` in one process: what is updated by rows, and what is refused or dense."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.assembly.failures import as_kdist_error
from kdist.distribute import keras_adapter
from kdist.distribute.buckets import table_values
from kdist.distribute.buckets.layout import Rows
from kdist.errors import ConfigError
from tests.engine.harness import assert_same, fit, prepare, train

L, optimizers = keras.layers, keras.optimizers
NUM_IDS, WIDTH = 50, 4
BY_ROWS = {"strategy": {"sparse": "rows"}}


def model_of(optimizer, **options):
    """Two features share a table with a mask, a third has its own."""

    def build():
        a = keras.Input((5,), dtype="int32", name="a")
        b = keras.Input((3,), dtype="int32", name="b")
        table = L.Embedding(NUM_IDS, WIDTH, mask_zero=True, name="table", **options)
        other = L.Embedding(NUM_IDS, WIDTH, name="other")
        means = [L.GlobalAveragePooling1D()(table(ids)) for ids in (a, b)]
        joined = L.concatenate([*means, L.Flatten()(other(b))])
        model = keras.Model({"a": a, "b": b}, L.Dense(3, "softmax")(joined))
        model.compile(optimizer(), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return build


def rows(num_rows=29, num_ids=NUM_IDS):
    rng = np.random.default_rng(4)
    ids = rng.integers(0, num_ids, size=(num_rows, 8)).astype("int32")
    ids[:, :2] = 1 + ids[:, :2] % 3
    return {"a": ids[:, :5], "b": ids[:, 5:]}, rng.integers(0, 3, num_rows).astype("int32")


def with_block_draws(build):
    """Return a builder of the same model with the first values of `sparse=rows`."""

    def drawn():
        model = build()
        for name in ("table", "other"):
            layer = model.get_layer(name)
            table_values.fill_rows(
                layer.embeddings.value, layer, Rows(first=0, stop=layer.input_dim)
            )
        return model

    return drawn


def lazily(build, data, *, epochs=2, batch_size=8):
    """Train by the definition: update whole tables, then undo it for rows not in the batch."""
    keras.utils.set_random_seed(0)
    model = with_block_draws(build)()
    x, y = data["train"]
    tables = [model.get_layer(name).embeddings for name in ("table", "other")]
    optimizer = model.optimizer
    with keras_adapter.recorded_slots(optimizer) as recorded:
        optimizer.build(model.trainable_variables)
    for _ in range(epochs):
        for first in range(0, len(y), batch_size):
            part = {k: v[first : first + batch_size] for k, v in x.items()}
            with tf.GradientTape() as tape:
                y_pred = model(part, training=True)
                loss = model.compute_loss(part, y[first : first + batch_size], y_pred)
            gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
            read = {id(tables[0]): [*part["a"].flat, *part["b"].flat], id(tables[1]): part["b"]}
            kept = []
            for table in tables:
                untouched = np.setdiff1d(np.arange(NUM_IDS), np.unique(read[id(table)]))
                held = [table, *(slot for ref, slot in recorded if ref is table)]
                kept += [(v, untouched, v.numpy()[untouched]) for v in held]
            optimizer.apply([tf.convert_to_tensor(g) for g in gradients], model.trainable_variables)
            for variable, untouched, old in kept:
                value = variable.numpy()
                value[untouched] = old
                variable.assign(value)
    return model


OPTIMIZERS = {
    "momentum": lambda: optimizers.SGD(0.5, momentum=0.9, nesterov=True),
    "adagrad": lambda: optimizers.Adagrad(0.2, clipvalue=0.05),
    "adam": lambda: optimizers.Adam(0.05, global_clipnorm=0.05),
    "ftrl": lambda: optimizers.Ftrl(0.2, l1_regularization_strength=0.001),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_is_that_of_keras_on_the_rows_of_the_batch(name):
    build = model_of(OPTIMIZERS[name])
    x, y = rows()
    outcome = train(build, {"train": (x, y)}, **BY_ROWS)
    assert len(outcome.engine.layout.buckets) == 3
    expected = lazily(build, {"train": (x, y)})
    for mine, theirs in zip(outcome.weights, expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    expected_slots = [v.numpy() for v in expected.optimizer.variables]
    with outcome.bridge.view.saves_state():
        saved: dict[str, np.ndarray] = {}
        outcome.model.optimizer.save_own_variables(saved)
    for mine, theirs in zip(saved.values(), expected_slots, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("replicas", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_replicas_equal_one(replicas):
    build = model_of(OPTIMIZERS["adam"])
    data = {"train": rows(), "validation": rows(11)}
    one = train(build, data, steps_per_execution=3, **BY_ROWS)
    assert_same(train(build, data, replicas=replicas, **BY_ROWS), one)


def test_plain_sgd_is_what_keras_does():
    build = with_block_draws(model_of(lambda: optimizers.SGD(0.5)))
    data = {"train": rows(), "validation": rows(11)}
    assert_same(train(model_of(lambda: optimizers.SGD(0.5)), data, **BY_ROWS), fit(build, data))


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (lambda: optimizers.RMSprop(), "SGD, Adagrad, Adam, AdamW, Ftrl. Received: RMSprop for "),
        (lambda: optimizers.Adam(use_ema=True), "use_ema=True"),
        (lambda: optimizers.AdamW(), "weight_decay=0.004"),
        (lambda: optimizers.Adam(clipnorm=1.0), "clipnorm=1.0"),
        (lambda: optimizers.Adam(gradient_accumulation_steps=2), "gradient_accumulation_steps=2"),
        (
            lambda: optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD())),
            "MultiOptimizer",
        ),
    ],
)
def test_what_rows_cannot_have_is_refused_by_name(optimizer, named):
    with pytest.raises(ConfigError, match=named.replace("(", r"\(")) as raised:
        prepare(model_of(optimizer), {"train": rows()}, **BY_ROWS)
    assert "table/embeddings" in str(raised.value)


def test_tables_that_are_left_out_of_decay_are_updated_by_rows():
    def decaying():
        optimizer = optimizers.AdamW(0.05)
        optimizer.exclude_from_weight_decay(var_names=["embeddings"])
        return optimizer

    outcome = train(model_of(decaying), {"train": rows()}, **BY_ROWS)
    assert len(outcome.engine.structure.by_rows) == 2


class Tied(L.Layer):
    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, inputs):
        return keras.ops.matmul(inputs, keras.ops.transpose(self.table.embeddings))


def test_tables_that_something_else_reads_stay_dense_and_are_named():
    def build():
        ids = keras.Input((5,), dtype="int32")
        table = L.Embedding(NUM_IDS, WIDTH, name="shared")
        regular = L.Embedding(NUM_IDS, WIDTH, name="regular", embeddings_regularizer="l2")
        both = L.GlobalAveragePooling1D()(table(ids) + regular(ids))
        model = keras.Model(ids, Tied(table)(both))
        model.compile(optimizers.SGD(0.5), loss=keras.losses.SparseCategoricalCrossentropy(True))
        return model

    x, _ = rows()
    data = {"train": (x["a"], x["a"][:, 0])}
    outcome = train(build, data, **BY_ROWS)
    assert not outcome.engine.structure.by_rows
    assert "leaves shared/embeddings, regular/embeddings dense" in outcome.engine.notes[-1]

    def drawn():
        model = build()
        layer = model.get_layer("shared")
        table_values.fill_rows(layer.embeddings.value, layer, Rows(first=0, stop=NUM_IDS))
        return model

    assert_same(outcome, fit(drawn, data))


def test_values_that_the_model_function_gives_are_kept():
    given = np.random.default_rng(3).normal(size=(NUM_IDS, WIDTH)).astype("float32")

    def build():
        ids = keras.Input((5,), dtype="int32")
        tables = [
            L.Embedding(NUM_IDS, WIDTH, weights=[given]),
            L.Embedding(NUM_IDS, WIDTH, embeddings_initializer=keras.initializers.Constant(given)),
            L.Embedding(NUM_IDS, WIDTH),
        ]
        model = keras.Model(ids, [L.Flatten()(table(ids)) for table in tables])
        tables[2].set_weights([given])
        model.compile(optimizers.SGD(0.5), loss="mse")
        return model

    x, _ = rows()
    y = np.zeros((len(x["a"]), 5 * WIDTH), "float32")
    outcome = prepare(build, {"train": (x["a"], (y, y, y))}, **BY_ROWS)
    for weight in outcome.model.get_weights():
        np.testing.assert_array_equal(weight, given)


def test_an_id_outside_of_its_table_is_named():
    x, y = rows()
    x["b"][17, 1] = NUM_IDS + 7
    outcome = prepare(model_of(optimizers.SGD), {"train": (x, y)}, **BY_ROWS)
    with pytest.raises(tf.errors.OpError) as raised:
        outcome.trainer.run()
    assert str(as_kdist_error(raised.value)) == (
        "The embedding table has ids from 0 to 49. Received: [57]. Correct the data, or raise its "
        "input_dim."
    )


@pytest.mark.parametrize("initializer", ["uniform", "glorot_normal", "he_uniform", "zeros"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_piece_is_drawn_as_the_whole(monkeypatch, initializer, step):
    """Blocks are drawn one by one; a piece's rows are those of the whole table."""
    monkeypatch.setattr(table_values, "BLOCK_ROWS", 7)
    layer = L.Embedding(37, 3, embeddings_initializer=initializer)
    whole = tf.Variable(tf.fill((37, 3), 9.0))
    table_values.fill_rows(whole, layer, Rows(first=0, stop=37))
    assert np.unique(whole.numpy()).size == (1 if initializer == "zeros" else 37 * 3)
    for first in range(step):
        piece = Rows(first=first, stop=37, step=step)
        variable = tf.Variable(tf.zeros((piece.num, 3)))
        table_values.fill_rows(variable, layer, piece)
        np.testing.assert_array_equal(variable.numpy(), whole.numpy()[piece.as_slice])


def test_the_scale_of_a_block_is_that_of_the_whole_table(monkeypatch):
    monkeypatch.setattr(table_values, "BLOCK_ROWS", 100)
    layer = L.Embedding(10_000, 16, embeddings_initializer="he_normal")
    expected = (2.0 / 10_000) ** 0.5
    assert np.std(table_values.draw_block(layer, 500)) == pytest.approx(expected, rel=0.05)
