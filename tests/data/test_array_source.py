"""Arrays: any batch at any time, each row once a pass, in every share split."""

from itertools import chain

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.data import ArraySource, DataSettings, check_enough_examples, make_source
from kdist.distribute.data.runs import block_bounds, run_length, runs_of
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError

from .conftest import read, rows_read


@pytest.mark.parametrize(
    ("num_workers", "replicas"), [(1, 1), (1, 2), (2, 1), (3, 1), (2, 2), (3, 2)]
)
@pytest.mark.parametrize("num_rows", [12, 13, 17])
def test_workers_blocks_join_to_batch_k_without_shuffle(numbered, num_rows, num_workers, replicas):
    source = numbered(num_rows, batch_size=4, shuffle=False)
    by_worker = [
        rows_read(
            source,
            2 * source.batches_per_pass,
            share=WorkerShare(
                worker_index=w, num_workers=num_workers, replicas_per_worker=replicas
            ),
        )
        for w in range(num_workers)
    ]
    for k, blocks in enumerate(zip(*by_worker, strict=True)):
        lo = k % source.batches_per_pass * 4
        expected = list(range(lo, min(lo + 4, num_rows)))
        if len(expected) < num_workers * replicas:
            assert all(set(block) <= set(expected) for block in blocks)
            assert blocks[0] == expected
        else:
            assert list(chain(*blocks)) == expected


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_shuffled_passes_hold_each_row_once(numbered, num_workers):
    source = numbered(24, batch_size=6, shuffle=True, seed=1)
    shares = [WorkerShare(worker_index=w, num_workers=num_workers) for w in range(num_workers)]
    by_worker = [rows_read(source, 8, share=share) for share in shares]
    batches = [list(chain(*blocks)) for blocks in zip(*by_worker, strict=True)]
    first, second = list(chain(*batches[:4])), list(chain(*batches[4:]))
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second
    assert batches == rows_read(source, 8), "the split does not change the order"


def test_rows_of_and_gather_give_what_dataset_gives(numbered):
    source = numbered(1000, batch_size=64, shuffle=True, seed=3)
    assert isinstance(source, ArraySource)
    for k, element in enumerate(read(source, 20)):
        rows = source.rows_of(tf.constant(k, tf.int64))
        assert rows.dtype == tf.int64
        x, y, sample_weight = source.gather(source.tensors, rows)
        assert np.array_equal(x, element[0])
        assert np.array_equal(y, element[1])
        assert sample_weight == element[2] == ()
        assert element[3] == len(rows)


@pytest.mark.parametrize("num_rows", [50, 100])
@pytest.mark.parametrize("shuffle", [False, True])
def test_reading_can_start_anywhere(numbered, num_rows, shuffle):
    source = numbered(num_rows, batch_size=8, shuffle=shuffle)
    everything = rows_read(source, 40)
    assert rows_read(source, 5, first_batch=23) == everything[23:28]
    assert rows_read(source, 5, first_batch=1, stride=3) == everything[1:16:3]


def test_one_pass_ends(numbered):
    source = numbered(10, batch_size=4)
    assert [len(b) for b in rows_read(source, 99, repeat=False)] == [4, 4, 2]
    assert [len(b) for b in rows_read(source, 99, first_batch=4, repeat=False)] == [4, 2]


def test_two_tasks_with_one_seed_see_one_order(numbered):
    tf.random.set_seed(1)
    first = rows_read(numbered(100, batch_size=16, seed=5), 14)
    tf.random.set_seed(2)
    assert rows_read(numbered(100, batch_size=16, seed=5), 14) == first
    assert rows_read(numbered(100, batch_size=16, seed=6), 14) != first


def test_last_batch_of_one_row_goes_whole_to_every_worker(numbered):
    source = numbered(9, batch_size=4, shuffle=False)
    for worker in range(2):
        share = WorkerShare(worker_index=worker, num_workers=2)
        (last,) = read(source, 1, first_batch=2, share=share)
        assert last[0].tolist() == [[8.0]]
        assert last[3] == 1


def test_batch_larger_than_the_data_is_one_batch(numbered):
    source = numbered(3, batch_size=64)
    assert source.batches_per_pass == 1
    assert [sorted(b) for b in rows_read(source, 2)] == [[0, 1, 2]] * 2


def test_nests_specs_and_types():
    x = {
        "image": np.zeros((5, 2, 2, 1), "uint8"),
        "pair": [np.zeros((5, 3)), np.zeros((5,), "int32")],
    }
    y = {"a": np.zeros(5, bool), "b": [[0.5], [1], [2], [3], [4]]}
    source = make_source((x, y, list(range(5))), settings=DataSettings(batch_size=2))
    spec = source.element_spec
    assert spec[0]["image"] == tf.TensorSpec([None, 2, 2, 1], tf.uint8)
    assert spec[0]["pair"] == (tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32))
    assert spec[1] == {"a": tf.TensorSpec([None], tf.bool), "b": tf.TensorSpec([None, 1])}
    assert spec[2] == tf.TensorSpec([None])
    found = source.dataset(0, WorkerShare(), repeat=True).element_spec
    assert found == (*spec, tf.TensorSpec([], tf.int64))
    assert source.first_batch(3)[0]["image"].shape == (3, 2, 2, 1)


@pytest.mark.parametrize("dtype", ["float64", "float16", ">f4", "float32"])
def test_floats_become_keras_floatx(dtype):
    x = np.linspace(0, 1, 6).astype(dtype)
    (element,) = read(make_source((x, x), settings=DataSettings(shuffle=False)), 1)
    assert element[0].dtype == np.float32
    assert np.allclose(element[0], x)


def test_numpy_floats_of_the_right_type_are_not_copied_before_use():
    x = np.zeros((8, 2), "float32")
    source = make_source((x, np.zeros(8)), settings=DataSettings())
    assert np.shares_memory(source.arrays[0], x)
    tensor = source.tensors[0]
    assert np.shares_memory(source.arrays[0], np.asarray(tensor)), "one copy from then on"


def test_strings_pass_as_inputs():
    x = np.array(["a", "bc", "d"])
    raw = np.array([b"1\0", b"2", b"3\0\0"], object)
    source = make_source(((x, raw), np.arange(3)), settings=DataSettings(shuffle=False))
    assert source.element_spec[0] == (tf.TensorSpec([None], tf.string),) * 2
    (element,) = read(source, 1)
    assert element[0][0].tolist() == [b"a", b"bc", b"d"]
    assert element[0][1].tolist() == [b"1\0", b"2", b"3\0\0"]


def test_pandas_frames_are_arrays():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3, 4]})
    labels = pandas.Series([0, 1])
    source = make_source((frame, labels), settings=DataSettings(shuffle=False))
    assert source.arrays[0].tolist() == [[1, 3], [2, 4]]
    assert source.arrays[0].dtype == np.float32
    names = make_source((pandas.Series(["u", "v"]), labels), settings=DataSettings())
    assert names.element_spec[0].dtype == tf.string


def test_inputs_alone_have_no_labels():
    source = make_source((np.zeros((4, 2)),), settings=DataSettings())
    assert source.element_spec[1:] == ((), ())
    assert read(source, 1)[0][1:3] == ((), ())


def test_large_rows_are_cut_without_shuffle_like_keras_does():
    x = np.random.default_rng(0).random((70, 3), "float32")
    dataset = make_source((x, x), settings=DataSettings(batch_size=32, shuffle=False))
    found = [element[0] for element in read(dataset, 3)]
    for k, batch in enumerate(found):
        assert np.array_equal(batch, x[32 * k : 32 * (k + 1)])


def test_keras_trains_on_the_dataset():
    rng = np.random.default_rng(0)
    x, y = rng.random((20, 4), "float32"), rng.integers(0, 2, 20)
    source = make_source((x, y), settings=DataSettings(batch_size=6, shuffle=False))
    dataset = source.dataset(0, WorkerShare(), repeat=False).map(lambda x, y, w, n: (x, y))
    weights = []
    for arguments in ({"x": dataset}, {"x": x, "y": y, "batch_size": 6, "shuffle": False}):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(2, activation="softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(**arguments, epochs=2, verbose=0)
        weights.append(model.layers[0].get_weights())
    for a, b in zip(*weights, strict=True):
        assert np.allclose(a, b, atol=1e-7)


def test_more_workers_than_examples(numbered):
    check_enough_examples(numbered(3), 3, key="data.train")
    with pytest.raises(ConfigError, match=r"3 examples in data.train, 4 workers"):
        check_enough_examples(numbered(3), 4, key="data.train")


X, Y = np.zeros((4, 2)), np.zeros(4)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ((X, np.zeros(3)), r"same number of rows.*x \(4, 2\), y \(3,\)"),
        ((X, Y, np.ones(5)), r"sample_weight \(5,\)"),
        (({"a": X, "b": np.zeros(3)}, Y), r"x\['b'\] \(3,\)"),
        ((np.zeros((0, 2)), np.zeros(0)), "no rows"),
        (([], Y), "x is empty"),
        (({}, Y), "x is empty"),
        ((None, Y), "x is None"),
        ((X, Y, Y, Y), "tuple of 4 items"),
        ((), "tuple of 0 items"),
        ({"x": X}, "Received: dict"),
        (X, "Received: ndarray"),
        (None, "Received: NoneType"),
        ("file.npz", "Received: str"),
        (dict, "Received: type"),
        (([[1, 2], [3]], np.zeros(2)), r"data.train x has rows of different shapes"),
        ((np.array([[1], [2, 3]], object), np.zeros(2)), r"data.train x .*object array of list"),
        ((np.array([1, "a"], object), np.zeros(2)), "object array of int, str"),
        (({"ids": np.array([None, 1])}, np.zeros(2)), r"data.train x\['ids'\].*NoneType"),
        ((tf.ragged.constant([[1], [2, 3]]), np.zeros(2)), "x must be a dense array.*Ragged"),
        ((tf.sparse.from_dense([[1, 0]]), np.zeros(1)), "x must be a dense array.*Sparse"),
        ((X, np.array(["a"] * 4)), "data.train y must hold numbers.*<U1"),
        ((X, np.zeros(4, "datetime64[s]")), "data.train y must hold numbers.*datetime64"),
        ((np.float32(1), Y), "rows along its first axis"),
        ((X, Y, np.array(["1"] * 4)), "sample_weight must hold numbers"),
        ((X, Y, np.ones(4, complex)), "sample_weight must hold real numbers"),
    ],
)
def test_bad_parts_are_named(part, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_source(part, settings=DataSettings(), key="data.train")
    assert "data.train" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_scipy_sparse_is_named():
    from scipy.sparse import csr_matrix

    with pytest.raises(ConfigError, match=r"x must be a dense array.*csr_matrix"):
        make_source((csr_matrix(X), Y), settings=DataSettings())


def test_nan_is_allowed():
    x = np.full((4, 2), np.nan)
    assert np.isnan(make_source((x, Y), settings=DataSettings()).arrays[0]).all()


@pytest.mark.parametrize("fields", [{"batch_size": 0}, {"batch_size": -3}, {"cache_bytes": -1}])
def test_bad_settings(fields):
    (name,) = fields
    with pytest.raises(ConfigError, match=f"data.{name} must.*Received: {fields[name]}"):
        DataSettings(**fields)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("num_rows", [9, 50, 331])
def test_runs_hold_the_blocks_of_their_batches(numbered, num_rows, num_workers, shuffle):
    source = numbered(num_rows, batch_size=4, shuffle=shuffle)
    for worker in range(num_workers):
        share = WorkerShare(worker_index=worker, num_workers=num_workers)
        expected = read(source, 40, first_batch=5, share=share)
        found = []
        for x, y, sample_weight, num_global_rows in runs_of(source, 5, share).take(30):
            assert 1 <= len(num_global_rows) <= run_length(source)
            lo, hi = block_bounds(num_global_rows, share)
            assert int(hi[-1]) == len(x) == len(y)
            assert sample_weight == ()
            found += [
                (x[a:b].numpy(), y[a:b].numpy(), int(n))
                for a, b, n in zip(lo, hi, num_global_rows, strict=True)
            ]
        assert len(found) >= 40
        for (x, y, n), element in zip(found, expected, strict=False):
            assert np.array_equal(x, element[0])
            assert np.array_equal(y, element[1])
            assert n == element[3]


def test_runs_are_short_where_batches_are_large(numbered):
    assert run_length(numbered(1000, batch_size=10)) == 10
    assert run_length(numbered(92, batch_size=4)) == 8, "23 batches: 8, 8 and 7, not 10, 10 and 3"
    large = make_source(
        (np.zeros((16, 400_000), "uint8"), np.zeros(16)), settings=DataSettings(batch_size=1)
    )
    assert run_length(large) == 2
    huge = make_source(
        (np.zeros((4, 2_000_000), "uint8"), np.zeros(4)), settings=DataSettings(batch_size=1)
    )
    assert run_length(huge) == 1
