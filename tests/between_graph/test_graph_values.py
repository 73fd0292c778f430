"""Variables of a graph that are read and written beside it, on one server of this process."""

import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.buckets.held_values import hold, release
from kdist.distribute.graph_values import GraphValues
from kdist.distribute.values import fill, read_each, read_rows, rows_writer, to_numpy, write

v1 = tf.compat.v1
CONTAINER = "kdist.values"


class Rig:
    """A graph of a table, a text and a counter, with its session."""

    def __init__(self):
        self.target = tf.distribute.Server.create_local_server().target
        self.graph = tf.Graph()
        with self.graph.as_default(), self.graph.container(CONTAINER):
            self.table = tf.Variable(tf.zeros([5, 2]), name="table")
            self.text = tf.Variable("", name="text")
            self.count = tf.Variable(tf.constant(0, tf.int64), name="count")
            fill(self.table, lambda raw: raw.assign(tf.reshape(tf.range(10.0), [5, 2])))
            self.counted = self.count.assign_add(1, read_value=False)
            self.initialize = v1.global_variables_initializer()
        self.num_operations = len(self.graph.get_operations())
        self.session = self.new_session(self.graph)
        self.session.run(self.initialize)
        self.values = GraphValues(self.session, self.new_session)

    def new_session(self, graph, *, is_optimized=True):
        del is_optimized
        return v1.Session(self.target, graph=graph)


@pytest.fixture
def rig():
    made = Rig()
    yield made
    made.values.close()
    made.session.close()


def test_the_same_variables_and_nothing_added_to_the_graph(rig):
    rig.values.fill_all()
    np.testing.assert_array_equal(to_numpy(rig.table), np.arange(10.0).reshape(5, 2))
    write(rig.text, "notes")
    write(rig.count, 7)
    rig.session.run(rig.counted)
    assert [each.item() for each in read_each([rig.text, rig.count])] == [b"notes", 8]
    rows_writer(rig.table)(np.array([1, 4]), np.full([2, 2], -1.0, "float32"))
    assert read_rows(rig.table, 0, 2).tolist() == [[0, 1], [-1, -1]]
    assert rig.session.run(rig.table)[4].tolist() == [-1, -1]
    assert len(rig.graph.get_operations()) == rig.num_operations


def test_what_is_held_stays(rig):
    rig.values.fill_all()
    held = hold([rig.table, rig.count])
    write(rig.table, np.zeros([5, 2]))
    rig.session.run(rig.counted)
    assert np.asarray(held[0]).tolist() == np.arange(10.0).reshape(5, 2).tolist()
    assert held[0].rows(3, 5).tolist() == [[6, 7], [8, 9]]
    assert (np.asarray(held[1]).item(), to_numpy(rig.count).item()) == (0, 1)
    release(held)
