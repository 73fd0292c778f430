"""Every form of data, and what callbacks write, reaches clients that read and compute alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.errors import ConfigError
from tests.engine.harness import assert_same, fit, labelled_rows
from tests.ps import test_callbacks as in_graph
from tests.ps import test_row_tables as row_tables
from tests.ps.models import numbered_rows
from tests.ps.test_data import FORMS, NUM_ROWS, Batches, build
from tests.ps.test_random_layers import test_masks as masks

test_a_counter_that_is_set_reaches_the_servers = (
    in_graph.test_a_counter_that_is_set_reaches_the_servers
)
test_early_stopping_and_schedule = in_graph.test_early_stopping_and_schedule
test_own_batch_hooks = pytest.mark.slow(in_graph.test_own_batch_hooks)
test_masks = pytest.mark.slow(masks)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_weights_that_no_step_writes(cluster, workers):
    """What a callback writes into a frozen weight reaches every client's copy."""
    in_graph.test_weights_that_no_step_writes(cluster, workers)


@pytest.mark.parametrize(
    "form",
    [pytest.param(f, marks=pytest.mark.slow) for f in ("dataset", "py_dataset")] + ["stream"],
)
def test_each_row_once_a_pass(cluster, form):
    """Workers that read for themselves leave out the batches that others have taken."""
    make, settings = FORMS[form]
    data = {"train": make(), "validation": make()}
    run = cluster.train(build, data, workers=2, shuffle=True, **settings)
    assert run.state.examples_seen == 2 * NUM_ROWS
    assert run.history["seen"] == run.history["val_seen"] == [NUM_ROWS] * 2
    assert run.state.batches_seen == run.loop.store.num_updates


def test_batches_by_index_are_read_by_whom_they_are_computed(cluster):
    """Two workers read 22 batches, and not 22 each; a few more were read to check the data."""
    reads = []

    class Counted(Batches):
        def __getitem__(self, index):
            reads.append(index)
            return super().__getitem__(index)

    run = cluster.prepare(build, {"train": Counted()}, workers=2)
    num_before = len(reads)
    run.run()
    assert run.history["seen"] == [NUM_ROWS] * 2
    assert len(reads) - num_before == run.state.batches_seen == 22


@pytest.mark.slow
def test_function_of_the_input_context(cluster):
    """Each worker trains on its own pipeline's batches."""

    def make(context):
        x, y = numbered_rows(NUM_ROWS)
        own = slice(context.input_pipeline_id, None, context.num_input_pipelines)
        return tf.data.Dataset.from_tensor_slices((x[own], y[own])).batch(5)

    run = cluster.train(build, {"train": make}, workers=2, steps_per_epoch=6)
    assert run.state.batches_seen == run.loop.store.num_updates == 12
    assert 12 * 2 <= run.state.examples_seen <= 12 * 5


def test_strings_and_wide_constants(cluster):
    """Constants of a layer that a graph cannot reach are handed over, however many they are."""
    width = 300

    def build_adapted():
        normalization = keras.layers.Normalization()
        normalization.adapt(np.random.default_rng(0).normal(2.0, 3.0, (50, width)))
        model = keras.Sequential(
            [keras.Input((width,)), normalization, keras.layers.Dense(3, "softmax")]
        )
        model.compile(keras.optimizers.SGD(0.1), loss="sparse_categorical_crossentropy")
        return model

    x = np.random.default_rng(1).normal(2.0, 3.0, (40, width)).astype("float32")
    data = {"train": (x, np.arange(40) % 3)}
    assert_same(cluster.train(build_adapted, data), fit(build_adapted, data))


def test_tables_of_this_process_are_refused(cluster):
    def build_lookup():
        words = keras.Input((1,), dtype="string")
        ids = keras.layers.StringLookup(vocabulary=["a", "b"])(words)
        vectors = keras.layers.Flatten()(keras.layers.Embedding(3, 2)(ids))
        model = keras.Model(words, keras.layers.Dense(1)(vectors))
        model.compile("sgd", loss="mse")
        return model

    data = {"train": (np.array([["a"], ["b"]] * 8), np.zeros((16, 1), "float32"))}
    with pytest.raises(ConfigError, match=r"between_graph cannot reach. Received: string_lookup"):
        cluster.prepare(build_lookup, data)


@pytest.mark.slow
def test_one_and_two_clients_evaluate_alike(cluster):
    """Validation is shared out by whole batches; what is limited stays limited."""

    def build_model():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
        model.compile(
            keras.optimizers.SGD(0.0),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy(name="again")],
        )
        return model

    x, y = labelled_rows()
    data = {"train": (x, y), "validation": (x[:37], y[:37])}
    one, two = (cluster.train(build_model, data, workers=n, epochs=1) for n in (1, 2))
    for name, values in one.history.items():
        assert values == pytest.approx(two.history[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("name", row_tables.OPTIMIZERS)
def test_tables_by_rows(cluster, name):
    """Tables are drawn on the servers, and updated there by the rows of a batch."""
    row_tables.test_servers_update_what_one_process_updates(cluster, name)


@pytest.mark.slow
def test_callbacks_write_tables(cluster):
    row_tables.test_what_a_callback_writes_into_a_table_reaches_the_servers(cluster)


@pytest.mark.slow
def test_the_chief_holds_no_large_table(cluster, tmp_path, monkeypatch):
    row_tables.test_the_chief_never_holds_a_table_above_the_limit(cluster, tmp_path, monkeypatch)
