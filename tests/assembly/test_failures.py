"""What an exception is called in the one message of a run that fails."""

import pytest
import tensorflow as tf

from kdist.assembly.failures import as_kdist_error
from kdist.errors import TrainingError


def rows():
    yield 1.0
    raise ValueError("row 2 is broken: {it}")


def read_eagerly(data):
    list(data)


def read_mapped(data):
    list(data.map(lambda row: tf.py_function(fails, [row], tf.float32)))


def fails(row):
    raise ValueError("row 2 is broken: {it}")


@tf.function
def read_in_a_graph(data):
    for row in data:
        tf.print(row, output_stream="file:///dev/null")


@pytest.mark.parametrize("read", [read_eagerly, read_mapped, read_in_a_graph])
def test_an_exception_in_a_generator_is_told_without_what_tensorflow_adds(read):
    data = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([], tf.float32))
    with pytest.raises(tf.errors.OpError) as raised:
        read(data)
    meant = as_kdist_error(raised.value)
    assert isinstance(meant, TrainingError)
    assert str(meant) == "ValueError: row 2 is broken: {it}"
