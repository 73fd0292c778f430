"""A tf.data.Dataset: held in memory if it fits, else read as a stream; both give the same rows."""

from itertools import chain

import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.data import ArraySource, DataSettings, make_source, num_steps
from kdist.distribute.data.stream_source import StreamSource
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError

from .conftest import read, rows_read


def numbered_dataset(num_rows):
    x = np.arange(num_rows, dtype="float32").reshape(-1, 1)
    return tf.data.Dataset.from_tensor_slices((x, np.arange(num_rows)))


def endless(num_rows):
    return numbered_dataset(num_rows).repeat()


def of_unknown_size(num_rows):
    return numbered_dataset(num_rows).filter(lambda x, y: True)


def stream(dataset, **settings):
    settings = {"cache_bytes": 0, **settings}
    return make_source(dataset, settings=DataSettings(**settings), key="data.train")


@pytest.mark.parametrize("make", [numbered_dataset, of_unknown_size])
def test_what_fits_is_held_as_arrays(make):
    source = stream(make(10), cache_bytes=1000, batch_size=4)
    assert isinstance(source, ArraySource)
    assert source.arrays[0].ravel().tolist() == list(range(10))
    assert source.warnings == ()


@pytest.mark.parametrize("make", [numbered_dataset, of_unknown_size])
def test_what_does_not_fit_is_a_stream_that_says_so(make):
    source = stream(make(10), cache_bytes=600, batch_size=64)
    assert isinstance(source, StreamSource)
    assert source.warnings == (
        "data.train is read as a stream, since it is larger than data.cache_bytes=600.",
        "data.train is shuffled within windows of 64 rows.",
    )


@pytest.mark.parametrize(
    ("batch_is_global", "said"),
    [
        (True, "Each worker reads all of data.train and trains on its part of each batch."),
        (False, "Each worker reads all of data.train and trains on the batches that it takes."),
    ],
)
def test_a_stream_says_what_several_workers_read(batch_is_global, said):
    share = WorkerShare(num_workers=2)
    source = stream(numbered_dataset(10), share=share, batch_is_global=batch_is_global)
    assert said in source.warnings


def test_an_endless_one_is_a_stream_and_needs_a_length():
    with pytest.raises(ConfigError, match=r"data.train has no end.*steps_per_epoch"):
        stream(endless(10), cache_bytes=1 << 30)
    source = stream(endless(10), steps_per_epoch=3, batch_size=4, shuffle=False)
    assert (source.num_examples, source.batches_per_pass) == (None, None)
    assert num_steps(source, 3, key="data.train") == 3
    assert "has no end" in source.warnings[0]
    assert rows_read(source, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    with pytest.raises(ConfigError, match=r"size of data.train is not known.*steps_per_epoch=None"):
        num_steps(source, None, key="data.train")


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("make", [numbered_dataset, of_unknown_size])
def test_streams_give_the_batches_of_arrays_without_shuffle(make, num_workers):
    for worker in range(num_workers):
        share = WorkerShare(worker_index=worker, num_workers=num_workers)
        options = {"batch_size": 4, "shuffle": False}
        expected = read(
            stream(numbered_dataset(13), cache_bytes=1 << 20, **options), 8, share=share
        )
        found = read(stream(make(13), **options), 8, share=share)
        for a, b in zip(expected, found, strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, a, b)


def test_shuffled_passes_hold_each_row_once_in_every_split():
    source = stream(numbered_dataset(24), batch_size=6, seed=1)
    whole = rows_read(source, 8)
    for start in (0, 4):
        assert sorted(chain(*whole[start : start + 4])) == list(range(24))
    assert whole[:4] != whole[4:]
    shares = [WorkerShare(worker_index=w, num_workers=2) for w in range(2)]
    by_worker = [rows_read(source, 8, share=share) for share in shares]
    assert [list(chain(*blocks)) for blocks in zip(*by_worker, strict=True)] == whole


@pytest.mark.parametrize("make", [numbered_dataset, of_unknown_size])
@pytest.mark.parametrize("shuffle", [False, True])
def test_streams_can_start_anywhere(make, shuffle):
    source = stream(make(13), batch_size=4, shuffle=shuffle)
    everything = rows_read(source, 20)
    assert rows_read(source, 5, first_batch=9) == everything[9:14]
    assert rows_read(source, 3, first_batch=2, stride=3) == everything[2:11:3]


def test_one_pass_of_a_stream_ends():
    source = stream(numbered_dataset(10), batch_size=4)
    assert [len(b) for b in rows_read(source, 99, repeat=False)] == [4, 4, 2]
    assert [len(b) for b in rows_read(source, 99, first_batch=4, repeat=False)] == [4, 2]
    unknown = stream(of_unknown_size(10), batch_size=4)
    assert [len(b) for b in rows_read(unknown, 99, repeat=False)] == [4, 4, 2]


def test_order_of_a_stream_does_not_depend_on_the_global_seed():
    found = []
    for seed in (1, 2, None):
        if seed is not None:
            tf.random.set_seed(seed)
        found.append(rows_read(stream(numbered_dataset(50), batch_size=8, seed=5), 14))
    assert found[0] == found[1] == found[2]
    assert rows_read(stream(numbered_dataset(50), batch_size=8, seed=6), 14) != found[0]


def test_making_a_stream_leaves_the_global_seed_alone():
    tf.random.set_seed(3)
    expected = tf.random.uniform([]).numpy()
    tf.random.set_seed(3)
    rows_read(stream(numbered_dataset(50), batch_size=8), 2)
    assert tf.random.uniform([]).numpy() == expected


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_dicts_weights_types_and_first_batch(cache_bytes):
    dataset = tf.data.Dataset.from_tensor_slices(
        (
            {"a": np.ones((6, 2)), "b": np.zeros((6, 3), "uint8")},
            (np.ones(6), np.ones(6)),
            np.ones(6),
        )
    )
    source = stream(dataset, cache_bytes=cache_bytes)
    assert source.element_spec == (
        {"a": tf.TensorSpec([None, 2]), "b": tf.TensorSpec([None, 3], tf.uint8)},
        (tf.TensorSpec([None]), tf.TensorSpec([None])),
        tf.TensorSpec([None]),
    )
    assert source.dataset(0, WorkerShare(), repeat=True).element_spec[:3] == source.element_spec
    assert source.first_batch(4)[0]["b"].shape == (4, 3)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {"only": x}])
def test_inputs_alone(wrap, cache_bytes):
    dataset = tf.data.Dataset.from_tensor_slices(wrap(np.ones((4, 2), "float32")))
    source = stream(dataset, cache_bytes=cache_bytes)
    assert source.element_spec[1:] == ((), ())
    assert read(source, 1)[0][3] == 4


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (numbered_dataset(8).batch(2), "unbatched.*data.batch_size"),
        (numbered_dataset(8).take(0), "no rows"),
        (of_unknown_size(8).filter(lambda x, y: False), "no rows"),
        (
            tf.data.Dataset.from_tensor_slices((tf.ragged.constant([[1], [2, 3]]), [0, 1])),
            r"data.train x must be a dense tensor.*Ragged",
        ),
        (
            tf.data.Dataset.from_tensor_slices(({"s": tf.sparse.eye(2)}, [0, 1])),
            r"data.train x\['s'\] must be a dense tensor.*Sparse",
        ),
        (
            tf.data.Dataset.from_generator(
                lambda: iter([([1.0], 0), ([1.0, 2.0], 1)]),
                output_signature=(tf.TensorSpec([None]), tf.TensorSpec([], tf.int64)),
            ),
            "data.train could not be read.*Pad rows",
        ),
        (
            tf.data.TextLineDataset(["/nowhere/lines.txt"]).map(lambda line: (line, 0)),
            "data.train could not be read.*NotFoundError.*/nowhere/lines.txt",
        ),
        (tf.data.Dataset.from_tensor_slices((np.ones(3),) * 4), "tuple of 4 items"),
    ],
)
def test_bad_datasets_are_named(dataset, message, cache_bytes):
    with pytest.raises(ConfigError, match=message):
        stream(dataset, cache_bytes=cache_bytes)


def test_a_generator_that_runs_out_is_named():
    """Keras trains on what is left and says nothing."""
    rows = iter([(float(k), k) for k in range(40)])
    dataset = tf.data.Dataset.from_generator(
        lambda: rows, output_signature=(tf.TensorSpec([]), tf.TensorSpec([], tf.int64))
    )
    source = StreamSource(
        dataset.map(lambda x, y: (x[None], y, ())),
        num_examples=None,
        settings=DataSettings(batch_size=8, shuffle=False),
        class_weight=None,
        warnings=(),
        key="data.train",
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"data.train gave rows once"):
        rows_read(source, 9)


@pytest.mark.parametrize(("batch_size", "known"), [(8, 8), (7, None), (48, None)])
def test_a_stream_knows_the_rows_of_its_batches_by_its_length(batch_size, known):
    rows = tf.data.Dataset.from_tensor_slices((np.ones((24, 2)), np.ones(24)))
    settings = DataSettings(batch_size=batch_size, cache_bytes=0)
    assert make_source(rows, settings=settings, key="data").rows_per_batch == known
    endless = make_source(rows.filter(lambda *_: True), settings=settings, key="data")
    assert endless.rows_per_batch is None
