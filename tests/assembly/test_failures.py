"""What an exception is called in the one message of a run that fails."""

import keras
import numpy as np
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


class Boom(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        np.zeros(3).reshape(2, 2)


def test_an_error_of_the_users_own_code_is_told_with_its_place():
    callbacks = keras.callbacks.CallbackList([Boom()])
    with pytest.raises(ValueError, match="cannot reshape") as raised:
        callbacks.on_epoch_end(0)
    line = Boom.on_epoch_end.__code__.co_firstlineno + 1
    assert str(as_kdist_error(raised.value)).endswith(f"({__file__}, line {line})")


def test_an_error_of_nobodys_own_code_is_told_without():
    assert str(as_kdist_error(ValueError("odd"))) == "ValueError: odd"


@pytest.mark.parametrize("read", [read_eagerly, read_mapped, read_in_a_graph])
def test_an_exception_in_a_generator_is_told_without_what_tensorflow_adds(read):
    data = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([], tf.float32))
    with pytest.raises(tf.errors.OpError) as raised:
        read(data)
    meant = as_kdist_error(raised.value)
    assert isinstance(meant, TrainingError)
    assert str(meant) == "ValueError: row 2 is broken: {it}"
