"""Every form of data gives each row once a pass, however many workers ask for rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.engine.harness import numpy_weights
from tests.ps.models import RowsSeen, numbered_rows, seen_counts

NUM_ROWS = 53


def build():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(
        keras.optimizers.SGD(0.01),
        loss=lambda y_true, y_pred: keras.ops.sum(y_pred, axis=-1),
        metrics=[RowsSeen(NUM_ROWS)],
    )
    return model


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 11

    def __getitem__(self, index):
        x, y = numbered_rows(NUM_ROWS)
        return x[index * 5 : index * 5 + 5], y[index * 5 : index * 5 + 5]


def from_arrays():
    return numbered_rows(NUM_ROWS)


def from_dataset():
    return tf.data.Dataset.from_tensor_slices(numbered_rows(NUM_ROWS))


def from_generator():
    x, y = numbered_rows(NUM_ROWS)
    signature = (tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.int32))
    return tf.data.Dataset.from_generator(
        lambda: zip(x, y, strict=True), output_signature=signature
    )


def from_function():
    def dataset(context):
        del context
        return from_dataset().batch(5)

    return dataset


FORMS = {
    "arrays": (from_arrays, {}),
    "dataset": (from_dataset, {}),
    "stream": (from_dataset, {"cache_bytes": 1}),
    "generator": (from_generator, {"cache_bytes": 1, "steps_per_epoch": 7}),
    "py_dataset": (lambda: Batches(), {}),
    "function": (from_function, {"steps_per_epoch": 11}),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_row_once_a_pass(cluster, form):
    make, settings = FORMS[form]
    data = {"train": make(), "validation": make() if form != "function" else None}
    run = cluster.prepare(build, data, workers=3, shuffle=True, **settings)
    passes = []
    run.trainer._reporter = Recorder(lambda: passes.append(seen_counts(run.model)))
    run.run()
    steps = run.trainer._plan.steps_per_epoch
    assert run.state.batches_seen == 2 * steps == run.loop.store.num_updates
    assert run.state.examples_seen == 2 * NUM_ROWS
    assert run.history["seen"] == [NUM_ROWS] * 2
    assert len(passes) == 2 * (1 if form == "function" else 2)
    for counts in passes:
        np.testing.assert_array_equal(counts, 1)


class Recorder:
    """Looks at the metrics after training and after validation."""

    is_progress_due = False

    def __init__(self, look):
        self.look = look

    def status(self, text):
        self.look()

    def epoch(self, facts):
        self.look()


def test_limited_validation(cluster):
    """`validation_batches` counts whole batches from the start of the part."""
    run = cluster.prepare(build, {"train": from_arrays()}, workers=2)
    source = run.loop._source
    for num_batches, rows in ((2, 16), (None, NUM_ROWS), (100, NUM_ROWS)):
        sums = run.loop.evaluate(source, num_batches)
        assert run.loop.logs.num_examples(sums) == rows


def test_frozen_layers_stay_with_the_workers(cluster):
    """They are no part of what servers hold and workers pull, and keep every bit."""

    def with_frozen_layer():
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(50, name="frozen", trainable=False),
                keras.layers.BatchNormalization(trainable=False),
                keras.layers.Dense(2),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    run = cluster.prepare(with_frozen_layer, {"train": (x, x[:, :2])}, workers=2)
    before = numpy_weights(run.model)
    assert sum(run.engine.layout.bytes_per_server()) == 4 * (50 * 2 + 2)
    assert run.loop.store.states.shape == (0,)
    run.run()
    for index, (was, now) in enumerate(zip(before, run.weights, strict=True)):
        assert np.array_equal(was, now) == (index < 6)
