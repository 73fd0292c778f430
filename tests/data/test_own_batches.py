"""Parts that bring their own batches: PyDataset and functions of InputContext."""

from itertools import chain

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.data import DataSettings, make_source, num_steps
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError

from .conftest import read, rows_read


class Numbered(keras.utils.PyDataset):
    """Batches of 4 of the numbers below `num_rows`."""

    def __init__(self, num_rows, *, num_batches=-1, change=None, **options):
        super().__init__(**options)
        self.num_rows, self.length, self.change = num_rows, num_batches, change
        self.calls = []

    @property
    def num_batches(self):
        return -(-self.num_rows // 4) if self.length == -1 else self.length

    def __getitem__(self, index):
        self.calls.append(index)
        rows = np.arange(4 * index, min(4 * index + 4, self.num_rows))
        batch = (rows[:, None].astype("float64"), rows)
        return self.change(index, batch) if self.change else batch

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")


def source_of(part, class_weight=None, **settings):
    return make_source(
        part, settings=DataSettings(**settings), class_weight=class_weight, key="data.train"
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_py_dataset_passes_hold_each_row_once(threads, shuffle):
    source = source_of(Numbered(22, workers=threads), shuffle=shuffle)
    assert source.batches_per_pass == num_steps(source, None, key="data.train") == 6
    batches = rows_read(source, 18)
    for start in (0, 6, 12):
        assert sorted(chain(*batches[start : start + 6])) == list(range(22))
    if shuffle:
        assert batches[:6] != batches[6:12]
    else:
        assert batches[:6] == [list(range(k, min(k + 4, 22))) for k in range(0, 24, 4)]
    assert rows_read(source, 4, first_batch=9) == batches[9:13]
    assert rows_read(source, 4, first_batch=2, stride=4) == batches[2:18:4]
    assert rows_read(source, 99, first_batch=7, repeat=False) == batches[7:12]


def test_py_dataset_shares_join_to_the_batch():
    source = source_of(Numbered(9), shuffle=True, share=WorkerShare(num_workers=2))
    assert "Each worker reads all of data.train" in source.warnings[0]
    takes_whole_ones = {"share": WorkerShare(num_workers=2), "batch_is_global": False}
    assert source_of(Numbered(9), **takes_whole_ones).warnings == ()
    whole = rows_read(source, 6)
    by_worker = [
        rows_read(source, 6, share=WorkerShare(worker_index=w, num_workers=2)) for w in range(2)
    ]
    for batch, first, second in zip(whole, *by_worker, strict=True):
        assert batch in (first + second, first if first == second else None)


def test_py_dataset_hooks_come_between_passes():
    part = Numbered(8, workers=2)
    source = source_of(part, shuffle=False)
    dataset = source.dataset(0, WorkerShare(), repeat=True)
    part.calls.clear()
    assert len(list(dataset.take(5))) == 5
    calls = part.calls
    assert (calls[0], sorted(calls[1:3]), calls[3:5]) == ("begin", [0, 1], ["end", "begin"])


def test_endless_py_dataset():
    with pytest.raises(ConfigError, match=r"no end.*steps_per_epoch=None"):
        source_of(Numbered(1000, num_batches=None))
    source = source_of(Numbered(1000, num_batches=None), steps_per_epoch=5)
    assert source.batches_per_pass is None
    assert rows_read(source, 2, first_batch=3) == [[12, 13, 14, 15], [16, 17, 18, 19]]


def test_py_dataset_spec_weights_and_first_batch():
    source = source_of(Numbered(9), class_weight={0: 2.0, 5: 3.0}, shuffle=False)
    assert source.element_spec == (
        tf.TensorSpec([None, 1]),
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([None]),
    )
    assert [e[2].tolist() for e in read(source, 3)] == [[2, 1, 1, 1], [1, 3, 1, 1], [1]]
    assert source.first_batch(2)[0].tolist() == [[0], [1]]


def test_py_dataset_with_batches_of_changing_length():
    widths = [3, 5, 4]
    part = Numbered(12, change=lambda i, b: (np.zeros((4, widths[i])), b[1]))
    source = source_of(part, shuffle=False)
    assert source.element_spec[0].shape.as_list() == [None, None]
    assert [e[0].shape for e in read(source, 3)] == [(4, 3), (4, 5), (4, 4)]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Numbered(0, num_batches=0), "no rows"),
        (Numbered(8, change=lambda i, b: (*b, b[1], b[1])), r"data.train\[0\].*tuple of 4"),
        (Numbered(8, change=lambda i, b: (b[0], b[1][:-1])), r"data.train\[0\].*same number"),
        (Numbered(8, change=lambda i, b: (b[0], {"a": b[1]} if i else b[1])), "look alike"),
        (Numbered(8, change=lambda i, b: (np.array([[1], [2, 3]], object), b[1])), "object array"),
    ],
)
def test_bad_py_datasets_are_named(part, message):
    with pytest.raises(ConfigError, match=message):
        source_of(part)


def test_a_later_batch_of_another_kind_is_named():
    part = Numbered(12, change=lambda i, b: (np.zeros((4, 2)), b[1]) if i == 2 else b)
    with pytest.raises(tf.errors.OpError, match=r"look alike.*batch 2 with"):
        rows_read(source_of(part, shuffle=False), 3)


def by_context(context):
    rows = tf.data.Dataset.range(12)
    rows = rows.shard(context.num_input_pipelines, context.input_pipeline_id)
    batches = rows.batch(context.get_per_replica_batch_size(8))
    return batches.map(lambda r: (tf.cast(r[:, None], tf.float64), r))


def test_per_worker_batches_are_each_workers_own():
    source = source_of(by_context, share=WorkerShare(num_workers=2))
    assert (source.kind, source.batches_per_pass) == ("per_worker", 2)
    assert source.element_spec[0] == tf.TensorSpec([None, 1])
    for worker in range(2):
        share = WorkerShare(worker_index=worker, num_workers=2)
        elements = read(source, 9, share=share, repeat=False)
        assert [e[1].tolist() for e in elements] == [
            [worker + 0, worker + 2, worker + 4, worker + 6],
            [worker + 8, worker + 10],
        ]
        assert [int(e[3]) for e in elements] == [4, 2]
        assert rows_read(source, 3, share=share, first_batch=1)[0] == [worker + 8, worker + 10]
    assert "its own affair" in " ".join(source.warnings[0].split())


def test_workers_whose_batches_are_updates_of_their_own_have_whole_ones():
    share = WorkerShare(worker_index=1, num_workers=2)
    source = source_of(by_context, share=share, batch_is_global=False)
    elements = read(source, 9, share=share, repeat=False)
    assert [e[1].tolist() for e in elements] == [[1, 3, 5, 7, 9, 11]]


def test_per_worker_class_weights_and_first_batch():
    source = source_of(by_context, class_weight={3: 5.0})
    assert read(source, 1)[0][2].tolist() == [1, 1, 1, 5, 1, 1, 1, 1]
    assert source.first_batch(3)[1].tolist() == [0, 1, 2]


def uneven(context):
    rows = tf.data.Dataset.range(4 + 4 * context.input_pipeline_id)
    return rows.batch(4).map(lambda r: (r, r))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (uneven, "same known number of batches.*batches by worker: 1, 2"),
        (lambda c: by_context(c).repeat(), "without end, without end"),
        (lambda c: by_context(c).filter(lambda x, y: True), "unknown, unknown"),
        (lambda c: by_context(c).take(0), "no rows for worker 0 of 2"),
        (lambda c: by_context(c).unbatch(), "must return a batched"),
        (lambda c: (np.ones(3), np.ones(3)), "must return a batched.*Received: tuple"),
        (lambda: None, "must take one argument"),
        (lambda a, b: None, "must take one argument"),
    ],
)
def test_bad_functions_are_named(part, message):
    with pytest.raises(ConfigError, match=message):
        source_of(part, share=WorkerShare(num_workers=2))


def test_steps_per_epoch_takes_uneven_and_endless_functions():
    share = WorkerShare(num_workers=2)
    source = source_of(uneven, share=share, steps_per_epoch=3)
    assert source.batches_per_pass is None
    assert [e[1].tolist() for e in read(source, 3, share=share)] == [[0, 1, 2, 3]] * 3
