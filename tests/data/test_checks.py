"""Labels against the model's outputs."""

import numpy as np
import pytest

from kdist.distribute.data import check_labels
from kdist.errors import ConfigError

SPARSE = "sparse_categorical_crossentropy"


@pytest.mark.parametrize(
    ("y", "shape", "loss"),
    [
        (np.arange(10), (None, 10), SPARSE),
        (np.arange(10.0)[:, None], (None, 10), "SparseCategoricalCrossentropy"),
        (np.zeros((4, 5), int), (None, 5, 3), SPARSE),
        (np.eye(3), (None, 3), "categorical_crossentropy"),
        (np.array([5.5, -1]), (None, 1), "mse"),
        (np.array([99]), (None, 10), None),
        ((), (None, 10), None),
        (np.array([99]), (None, None), SPARSE),
    ],
)
def test_accepted(y, shape, loss):
    check_labels(y, shape, loss)


@pytest.mark.parametrize(
    ("y", "loss", "message"),
    [
        (
            np.array([0, 3, 10]),
            SPARSE,
            r"from 0 to 9.*Received: 10 in row 2 of data.train \(1 of 3",
        ),
        (np.array([[0], [-1]]), SPARSE, "Received: -1 in row 1"),
        (np.array([0.5]), SPARSE, "Received: 0.5 in row 0"),
        (np.array([np.nan]), "SparseCategoricalCrossentropy", "Received: nan in row 0"),
        (np.array(["a"]), SPARSE, "class indices.*<U1"),
        ((), SPARSE, "no labels"),
        (np.arange(3), "categorical_crossentropy", r"10 numbers a row.*\(3,\).*sparse_cat"),
        (np.eye(3), "CategoricalCrossentropy", r"10 numbers a row.*\(3, 3\)"),
    ],
)
def test_refused(y, loss, message):
    with pytest.raises(ConfigError, match=message):
        check_labels(y, (None, 10), loss)


def test_an_ignored_class_may_lie_outside():
    check_labels(np.array([0, -1]), (None, 10), SPARSE, ignore_class=-1)
    with pytest.raises(ConfigError, match="Received: -2"):
        check_labels(np.array([0, -1, -2]), (None, 10), SPARSE, ignore_class=-1)
