"""Arrays from a file: names, splits, and one clear message for each fault."""

from pathlib import Path

import numpy as np
import pytest

from kdist.datasets import npz, read_npz
from kdist.errors import ConfigError, EnvironmentFault

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6)


@pytest.fixture
def write(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "data.npz", **arrays)
        return str(tmp_path / "data.npz")

    return save


def test_parts_by_name(write):
    path = write(
        x=X,
        y=Y,
        sample_weight=Y,
        x_validation=X[:2],
        y_validation=Y[:2],
        x_test=X[:1],
        y_test=Y[:1],
    )
    parts = npz(path, validation_fraction=0.5)
    assert list(parts) == ["train", "validation", "test"]
    assert [len(part) for part in parts.values()] == [3, 2, 2]
    assert np.array_equal(parts["train"][0], X)
    assert np.array_equal(parts["validation"][1], Y[:2])


def test_rows_are_held_out_where_the_file_has_no_validation(write):
    parts = npz(write(x=X, y=Y, sample_weight=Y), validation_fraction=0.3)
    assert [len(part[0]) for part in parts.values()] == [4, 2]
    for x, y, weights in parts.values():
        assert np.array_equal(x[:, 0], 2 * y)
        assert np.array_equal(y, weights)
    assert list(npz(write(x=X, y=Y))) == ["train"]


def test_inputs_alone_for_predicting(write):
    (x,) = npz(write(x=X), validation_fraction=0.2)["train"]
    assert np.array_equal(x, X)


def test_several_inputs_and_outputs(write):
    arrays = {
        "x.image": X,
        "x.age": Y,
        "y.a": Y,
        "y.b": Y,
        "x_validation.image": X[:1],
        "x_validation.age": Y[:1],
        "y_validation.a": Y[:1],
        "y_validation.b": Y[:1],
    }
    parts = npz(write(**arrays))
    assert list(parts["train"][0]) == ["image", "age"]
    assert list(parts["validation"][1]) == ["a", "b"]


def test_compressed_files(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=X, y=Y)
    assert np.array_equal(npz(str(tmp_path / "a.npz"))["train"][1], Y)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": Y}, "has y or sample_weight, but no x"),
        ({"x": X, "y": Y[:5]}, r"same number of rows.*\(6, 2\), \(5,\)"),
        ({"x": X, "y": Y, "y_validation": Y}, "y_validation.*but no x_validation"),
        ({"x": X, "y": Y, "x_val": X}, "Unknown arrays.*x_val.*x, y, sample_weight"),
        ({"x": X[:0], "y": Y[:0]}, "at least one"),
        ({"x": np.float32(1), "y": Y}, r"\(\), \(6,\)"),
        ({"x": X, "x.image": X, "y": Y}, "both x and x.image"),
        ({"x": np.array([{}, 1, 2], object), "y": Y[:3]}, "Cannot read array x.*allow_pickle"),
        ({"x_test": X, "y_test": Y}, "has no array x. Received: test"),
        ({}, "holds no arrays"),
    ],
)
def test_bad_files_are_named(write, arrays, message):
    path = write(**arrays)
    with pytest.raises(ConfigError, match=message) as caught:
        npz(path)
    assert path in str(caught.value)


def test_a_missing_file():
    with pytest.raises(EnvironmentFault, match=r"does not exist.*data.path=no.npz.*/no.npz"):
        npz("no.npz")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(EnvironmentFault, match="does not exist"):
        read_npz(str(tmp_path))


@pytest.mark.parametrize("kept", [0, 10, 200, 0.9])
def test_a_file_that_is_cut_off(write, kept, tmp_path):
    whole = write(x=np.random.default_rng(0).random((50, 20)), y=np.arange(50))
    data = Path(whole).read_bytes()
    path = tmp_path / "cut.npz"
    path.write_bytes(data[: kept if isinstance(kept, int) else int(len(data) * kept)])
    with pytest.raises(ConfigError, match=r"Cannot read.*cut.npz.*numpy.savez"):
        npz(str(path))


def test_damaged_bytes(write, tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).random((50, 20)))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "bad.npz").write_bytes(data)
    with pytest.raises(ConfigError, match=r"Cannot read array x of data.path="):
        npz(str(tmp_path / "bad.npz"))


@pytest.mark.parametrize("content", [b"x,y\n1,2\n", b"\x80\x04N."])
def test_files_of_another_kind(tmp_path, content):
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"Cannot read data.path=.*data.csv"):
        npz(str(path))


def test_a_single_array(tmp_path):
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(ConfigError, match=r"must be an .npz file.*shape \(6, 2\)"):
        npz(str(tmp_path / "x.npy"))
