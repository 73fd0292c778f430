"""Answers travel in a float32 vector, bit by bit."""

import numpy as np
import tensorflow as tf

from kdist.distribute.aggregation.answers import HEAD, of_step, with_answer, without_answer


def test_an_answer_comes_back_as_it_was_sent():
    """Among its bits may be those of no number at all."""
    bits_of_nan = np.array([0x7F800001, 0xFFC00000], np.uint32).view(np.int64)[0]
    answer = tf.constant([0, -1, 2**62 + 1, bits_of_nan, 3, 1], tf.int64)
    values, table = tf.constant([0.5, np.nan, -2.0]), tf.constant([[1, 2]])
    sent = tf.function(with_answer)(answer, [values, table])
    found, (vector, other) = without_answer([tf.identity(part) for part in sent], 6)
    np.testing.assert_array_equal(found, answer)
    np.testing.assert_array_equal(vector, values)
    np.testing.assert_array_equal(other, table)


def test_servers_are_told_the_step_and_who_made_the_one_before():
    answer = tf.constant([0, 17, 5, 40, 2, 0], tf.int64)
    assert of_step(answer).numpy().tolist() == [5, 2, 0] and HEAD == 4
