"""Holds one worker of a cluster, in the middle of its steps, until a fact has come about.

Everything is an operation on a server, so that no thread waits and time plays no part.
"""

import tensorflow as tf

_MANY = 1000


class Held:
    """Holds one worker's first passage; the others wait at theirs until it is there.

    The held worker goes on when the others have passed `until` times more, or by `let_go`.
    """

    def __init__(self, store, worker, *, until=0):
        self._worker, self._until = worker, until
        self._device = store.servers[0].device
        with tf.device(self._device):
            self._arrived = tf.Variable(tf.constant(0))
            self._num_left = tf.Variable(tf.constant(0))
            self._start, self._free = (tf.queue.FIFOQueue(-1, [tf.int32], [[]]) for _ in "12")

    @tf.autograph.experimental.do_not_convert
    def __call__(self, worker):
        """Return an operation that ends when this worker may go on."""
        worker = tf.cast(tf.identity(worker), tf.int64)
        with tf.device(self._device):
            arrived = self._arrived.read_value()
            is_first = tf.logical_and(tf.equal(worker, self._worker), tf.equal(arrived, 0))
            is_early = tf.logical_and(tf.not_equal(worker, self._worker), tf.equal(arrived, 0))
            return tf.case([(is_first, self._hold), (is_early, self._wait)], default=self._count)

    @property
    def has_arrived(self):
        return int(self._arrived.numpy()) > 0

    def let_go(self):
        self._free.enqueue_many(tf.zeros([_MANY], tf.int32))

    def _hold(self):
        ready = [self._num_left.assign(self._until), self._arrived.assign(1)]
        with tf.control_dependencies(ready):
            start = self._start.enqueue_many(tf.zeros([_MANY], tf.int32))
        with tf.control_dependencies([start]):
            return self._free.dequeue()

    def _wait(self):
        return self._start.dequeue()

    def _count(self):
        left = self._num_left.assign_sub(1)

        def free():
            with tf.control_dependencies([self._free.enqueue(0)]):
                return tf.constant(0)

        return tf.cond(tf.equal(left, 0), free, lambda: tf.constant(0))
