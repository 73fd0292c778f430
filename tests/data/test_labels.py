"""Labels that no class of the model stands for, in data of every form, wherever they come."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.data import DataSettings, LabelRule, make_source
from kdist.errors import ConfigError

from .conftest import read

X = np.zeros((20, 2), "float32")
RULES = [LabelRule(path=(), output_shape=(None, 3), loss_name="sparse_categorical_crossentropy")]


class Batches(keras.utils.PyDataset):
    def __init__(self, y):
        super().__init__()
        self.y = y

    def __len__(self):
        return 5

    def __getitem__(self, index):
        rows = slice(4 * index, 4 * index + 4)
        return X[rows], self.y[rows]


def rows(y):
    return tf.data.Dataset.from_tensor_slices((X, y))


FORMS = {
    "held": rows,
    "stream": lambda y: rows(y).repeat(),
    "py_dataset": Batches,
    "function": lambda y: lambda context: rows(y).batch(4).repeat(),
}


def source_of(form, labels):
    """Return a source of zeros, but for some labels by their rows."""
    y = np.zeros(20, "int64")
    for row, label in labels.items():
        y[row] = label
    settings = DataSettings(batch_size=4, shuffle=False, steps_per_epoch=5)
    return make_source(FORMS[form](y), settings=settings, key="data.validation")


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_label_among_the_first_is_refused_at_once(form):
    with pytest.raises(ConfigError, match=r"from 0 to 2.* -1 in row 2 of data\.validation"):
        source_of(form, {2: -1}).expect_labels(RULES)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "held"])
def test_a_later_one_fails_where_it_is_read(form):
    source = source_of(form, {10: 3, 19: 2})
    source.expect_labels(RULES)
    assert len(read(source, 2)) == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"from 0 to 2.* 3 in .*data\.valida"):
        read(source, 3)


@pytest.mark.parametrize("form", FORMS)
def test_what_the_loss_ignores_may_be_anything(form):
    source = source_of(form, {1: 255, 10: 255})
    rule = LabelRule(
        path=(), output_shape=(None, 3), loss_name=RULES[0].loss_name, ignore_class=255
    )
    source.expect_labels([rule])
    assert len(read(source, 5)) == 5


def test_only_the_labels_of_that_loss_are_looked_at():
    y = {"label": np.arange(20) % 3, "value": np.arange(20.0)}
    part = tf.data.Dataset.from_tensor_slices((X, y)).repeat()
    source = make_source(part, settings=DataSettings(batch_size=4, steps_per_epoch=5), key="data")
    mse = LabelRule(path=("value",), output_shape=(None, 1), loss_name="mse")
    of_label = LabelRule(path=("label",), output_shape=(None, 3), loss_name=RULES[0].loss_name)
    source.expect_labels([of_label, mse])
    assert len(read(source, 5)) == 5
    narrow = LabelRule(path=("label",), output_shape=(None, 2), loss_name=RULES[0].loss_name)
    with pytest.raises(ConfigError, match="Received: 2 in row 2"):
        source.expect_labels([narrow, mse])
