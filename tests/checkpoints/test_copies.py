"""When TensorFlow copies a table that is read, which the first checkpoint relies on."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from kdist.training.checkpoints.large_tables import write_no_rows

SHAPE = (6, 4)


def address(variable):
    """Return the tensor that is read, and where its values are; keep the tensor."""
    tensor = tf.convert_to_tensor(variable)
    return tensor, np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def test_a_table_is_copied_when_it_is_read_once_rows_were_written_by_themselves():
    table = tf.Variable(tf.random.normal(SHAPE))
    before = table.numpy().copy()
    first, second = address(table), address(table)
    assert first[1] == second[1]  # Both share the variable's own memory.
    write_no_rows([(SimpleNamespace(shape=SHAPE), table)])
    first, second = address(table), address(table)
    assert first[1] != second[1]
    np.testing.assert_array_equal(table.numpy(), before)
