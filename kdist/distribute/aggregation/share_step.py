"""One replica's turn in synchronous training on servers: read a share, compute it, contribute it.

As graph code in a worker. Which rows a share has, its seeds and its weight are functions of its
number, so that whoever computes it contributes the same.
"""

from typing import Any, Protocol

import tensorflow as tf

from kdist.distribute.aggregation.aggregation import Aggregation
from kdist.distribute.aggregation.answers import Dealt
from kdist.distribute.aggregation.share_dealer import WORK
from kdist.distribute.data.array_source import ArraySource
from kdist.distribute.model.loss_terms import VALID, WEIGHTS
from kdist.distribute.model.step_types import Share
from kdist.distribute.servers.server_step import ServerStep
from kdist.distribute.shares import share_bounds_op
from kdist.distribute.step.signatures import step_seeds

_PLAIN = tf.autograph.experimental.do_not_convert


class BatchReader(Protocol):
    """Reads rows of global batches, as graph code."""

    def num_rows(self, batch_index: Any) -> Any:
        """Return the rows of a global batch, an int64 scalar."""
        ...

    def rows(self, batch_index: Any, lo: Any, hi: Any) -> Any:
        """Return `(x, y, sample_weight)` of the rows `[lo, hi)` of a global batch."""
        ...


class ArrayReader:
    """Reads from arrays that the worker keeps."""

    def __init__(self, source: ArraySource, arrays: Any):
        """Hold the arrays as tensors, with the source that knows their order."""
        self._source = source
        self._arrays = arrays

    def num_rows(self, batch_index: Any) -> Any:
        """Return the rows of a global batch, an int64 scalar."""
        _, lo, hi = self._source.order.positions(batch_index)
        return hi - lo

    def rows(self, batch_index: Any, lo: Any, hi: Any) -> Any:
        """Return rows of a global batch."""
        order = self._source.order
        pass_index, first, _ = order.positions(batch_index)
        return self._source.gather(self._arrays, order.rows_at(pass_index, first + lo, first + hi))


class SentReader:
    """Reads from the one batch `(x, y, sample_weight, num_rows)` that a worker was sent."""

    def __init__(self, batch: Any):
        """Hold the batch."""
        *self._parts, self._num_rows = batch

    def num_rows(self, batch_index: Any) -> Any:
        """Return the rows of the batch."""
        del batch_index
        return self._num_rows

    def rows(self, batch_index: Any, lo: Any, hi: Any) -> Any:
        """Return rows of the batch."""
        del batch_index
        return tf.nest.map_structure(lambda leaf: leaf[lo:hi], tuple(self._parts))


class ShareStep:
    """Runs turns; see `Aggregation`."""

    def __init__(self, step: ServerStep, aggregation: Aggregation):
        """Hold the parts.

        Args:
            step: Pulls and computes.
            aggregation: Deals and aggregates.
        """
        self._step = step
        self._aggregation = aggregation
        self._num_shares = aggregation.num_shares
        self._needs_denominators = self._num_shares > 1 and any(
            term.denominator in (VALID, WEIGHTS) for term in step.structure.terms
        )

    @_PLAIN
    def run(
        self, replica: Any, stretch: Any, worker: Any, reader: BatchReader, frozen: Any
    ) -> tf.Tensor:
        """Take turns until the stretch is over; return the last answer.

        Args:
            replica: Which replica this is, int64 scalar.
            stretch: Which stretch of steps this is, int64 scalar.
            worker: Index of the worker that runs this, int64 scalar.
            reader: The data.
            frozen: Values of the variables that no step writes.
        """
        first = self._aggregation.begin(replica, stretch)
        (last,) = tf.while_loop(
            lambda dealt: tf.equal(dealt.answer[0], WORK),
            lambda dealt: (self.turn(dealt, replica, stretch, worker, reader, frozen),),
            (first,),
            parallel_iterations=1,
        )
        return last.answer

    @_PLAIN
    def turn(
        self,
        dealt: Dealt,
        replica: Any,
        stretch: Any,
        worker: Any,
        reader: BatchReader,
        frozen: Any,
    ) -> Dealt:
        """Compute and contribute the share that was dealt; return the next one."""
        answer = dealt.answer
        batch_index, position = answer[3] // self._num_shares, answer[3] % self._num_shares
        num_rows = reader.num_rows(batch_index)
        share = self._share(reader, batch_index, num_rows, position)
        seeds = step_seeds(self._step.structure, batch_index, position)
        weight = tf.cast(num_rows, tf.float32) / self._aggregation.batch_size
        pulled, waited_for = self._aggregation.pull(dealt)
        with tf.control_dependencies(waited_for):
            if self._needs_denominators:
                x, y, sample_weight = reader.rows(batch_index, 0, num_rows)
                batch = self._step.whole((x, y, sample_weight, num_rows))
                total = self._step.denominators(batch, seeds, frozen, pulled)
                own = self._step.denominators(share, seeds, frozen, pulled)
                share = share._replace(term_ratios=tf.math.divide_no_nan(own, total))
            gradients, aux, _ = self._step.contribution(
                share, seeds, frozen, weight=weight, pulled=pulled
            )
        gradients, is_finite = self._step.store.without_loss_scale(gradients, pulled.loss_scale)
        num_logged = self._step.aux.num_logged
        return self._aggregation.contribute(
            dealt,
            replica,
            stretch,
            worker,
            gradients=gradients,
            aux=tf.concat([aux[:num_logged], aux[num_logged:] * weight], 0),
            is_finite=is_finite,
        )

    def _share(self, reader: BatchReader, batch_index: Any, num_rows: Any, position: Any) -> Share:
        lo, hi, vote = share_bounds_op(num_rows, position, self._num_shares)
        x, y, sample_weight = reader.rows(batch_index, lo, hi)
        vote = tf.cast(vote, tf.float32)
        rows = tf.cast(num_rows, tf.float32)
        ratio = vote * tf.cast(hi - lo, tf.float32) / rows
        is_first = tf.cast(tf.equal(position, 0), tf.float32)
        terms = tf.ones([len(self._step.structure.terms)], tf.float32) * vote
        return Share(x, y, sample_weight, rows, ratio, vote, is_first, terms)
