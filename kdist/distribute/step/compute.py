"""The compute of a step: a pure function from parameters and a share of a batch to contributions.

Every mode runs this function. What comes out of it adds up over the shares of a batch: gradients
of the loss on the global batch, changes of the model's state, and changes of the metrics.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.buckets.packing import BucketPacking
from kdist.distribute.model.lookups import Lookups
from kdist.distribute.model.loss_terms import NOTHING, ROWS, DenominatorProbe, ScaledLoss
from kdist.distribute.model.state_scope import StateScope
from kdist.distribute.model.step_types import (
    NO_LOOKUPS,
    AuxLayout,
    Contribution,
    Share,
    StepValues,
    none_if_empty,
)
from kdist.distribute.model.structure import ModelStructure, call_model


class StepCompute:
    """Traces the model's forward and backward pass inside a `StateScope`."""

    def __init__(
        self,
        structure: ModelStructure,
        layout: BucketLayout,
        *,
        replicas_seen: int = 1,
        lookups: Lookups = NO_LOOKUPS,
    ):
        """Keep what a trace needs.

        Args:
            structure: The model taken apart.
            layout: The buckets that values and gradients are packed in.
            replicas_seen: Replicas that Keras sees while `train` is traced; it divides mean
                losses by them.
            lookups: Tables of which a step is given only the rows that it reads.
        """
        self.lookups = lookups
        self.structure = structure
        self.layout = layout
        self._packing = BucketPacking(structure, layout, lookups)
        self.replicas_seen = replicas_seen
        metric_variables = [v for slots in structure.metrics for v in slots.variables]
        self.aux = AuxLayout(
            tracker_shapes=tuple(() for _ in structure.trackers[1:]),
            metric_shapes=tuple(tuple(v.shape) for v in metric_variables),
            state_shapes=tuple(tuple(v.shape) for v in structure.float_states),
        )

    def train(self, values: StepValues, share: Share, loss_scale: tf.Tensor) -> Contribution:
        """Return one share's contribution to an update; gradients are of `loss * loss_scale`."""
        parameters = self._packing.unpack(values.buckets)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(parameters)
            with self._scope(parameters, values) as scope, self._answering(parameters, values):
                loss, logged = self._loss_and_logs(scope, share, training=True)
                scaled = loss * tf.cast(loss_scale, loss.dtype)
        gradients = tape.gradient(scaled, parameters)
        structure = self.structure
        changes = [
            (tf.cast(_current(scope, v), tf.float32) - tf.cast(old, tf.float32)) * share.row_ratio
            for v, old in zip(structure.float_states, values.float_states, strict=True)
        ]
        int_states = [_current(scope, variable) for variable in structure.int_states]
        aux = tf.concat([logged, *map(_flat, changes)], 0)
        aux = tf.ensure_shape(aux, [self.aux.num_logged + self.aux.num_states])
        return Contribution(self._packing.pack(gradients), aux, int_states)

    def evaluate(self, values: StepValues, share: Share) -> tf.Tensor:
        """Return one share's part of loss and metrics: float32 `[aux.num_logged]`."""
        parameters = self._packing.unpack(values.buckets)
        with self._scope(parameters, values) as scope, self._answering(parameters, values):
            _, logged = self._loss_and_logs(scope, share, training=False)
        return logged

    def denominators(self, values: StepValues, share: Share, *, training: bool) -> tf.Tensor:
        """Return this share's denominators: float32 `[number of loss terms]`, vote included."""
        model, found = self.structure.model, []
        parameters = self._packing.unpack(values.buckets)
        scope = keras.StatelessScope(self._mapping(parameters, values))
        with scope, self._answering(parameters, values):
            y_pred = call_model(model, share.x, training=training)
            probes = [DenominatorProbe(term, found) for term in self.structure.terms]
            with keras_adapter.replaced_losses(model, probes):
                keras_adapter.call_compiled_loss(
                    model, share.y, y_pred, none_if_empty(share.sample_weight)
                )
        return tf.stack(found) * share.vote

    def looked_up_ids(self, values: StepValues, x: Any, *, training: bool) -> list[list[tf.Tensor]]:
        """Return the ids that each table is asked for, by table and call: int64 vectors."""
        parameters = self._packing.unpack(values.buckets)
        with self._scope(parameters, values), self.lookups.recording() as found:
            call_model(self.structure.model, x, training=training)
        return found

    def _answering(self, parameters: Sequence[Any], values: StepValues) -> Any:
        rows = [parameters[table.variable_index] for table in self.lookups.tables]
        return self.lookups.answering(rows, values.positions)

    def _scope(self, parameters: Sequence[Any], values: StepValues) -> StateScope:
        """Return a scope that also collects what layers pass to `add_loss`."""
        return StateScope(self._mapping(parameters, values), collect_losses=True)

    def _mapping(self, parameters: Sequence[Any], values: StepValues) -> list[tuple[Any, Any]]:
        structure = self.structure
        mapping = [
            (variable, parameters[index])
            for index, variable in enumerate(structure.trainable)
            if index not in self.lookups.variable_indices
        ]
        mapping += zip(structure.float_states, values.float_states, strict=True)
        mapping += zip(structure.int_states, values.int_states, strict=True)
        mapping += zip(structure.seeds, values.seeds, strict=True)
        mapping += zip(structure.frozen, values.frozen, strict=True)
        for slots in (*structure.trackers, *structure.metrics):
            mapping += [
                (variable, tf.constant(value))
                for variable, value in zip(slots.variables, slots.reset_values, strict=True)
            ]
        return mapping

    def _loss_and_logs(
        self, scope: keras.StatelessScope, share: Share, *, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        model = self.structure.model
        weights = none_if_empty(share.sample_weight)
        y_pred = call_model(model, share.x, training=training)
        loss, logged_loss, by_term = self._loss(y_pred, share, weights, training=training)
        model.compute_metrics(share.x, share.y, y_pred, sample_weight=weights)
        logs = [
            _flat(tf.reduce_sum(share.vote * _num_rows(share.x))),
            _flat(tf.cast(logged_loss, tf.float32) * share.num_rows),
        ]
        for value in by_term:
            logs += [_flat(tf.cast(value, tf.float32)), _flat(share.is_first)]
        for slots in self.structure.metrics:
            for variable, reset in zip(slots.variables, slots.reset_values, strict=True):
                change = _current(scope, variable) - tf.constant(reset)
                logs.append(_flat(tf.cast(change, tf.float32) * share.vote))
        return loss, tf.concat(logs, 0)

    def _loss(
        self, y_pred: Any, share: Share, weights: Any, *, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Return this share's part of the loss, of the logged loss, and of each logged term."""
        structure, model = self.structure, self.structure.model
        if structure.has_own_loss:
            loss = model.compute_loss(
                x=share.x, y=share.y, y_pred=y_pred, sample_weight=weights, training=training
            )
            loss = loss * tf.cast(share.row_ratio, loss.dtype)
            return loss, loss, []
        additional = [tf.reduce_sum(loss) for loss in model.losses]
        total = tf.add_n([tf.cast(loss, tf.float32) for loss in additional]) if additional else None
        extra = None if total is None else total * share.row_ratio
        undo = float(self.replicas_seen) if training else 1.0
        loss, by_term = self._compiled_loss(y_pred, share, weights, undo, takes_mean=False)
        logged = loss
        if any(term.is_unreduced for term in structure.terms):
            logged, by_term = self._compiled_loss(y_pred, share, weights, undo, takes_mean=True)
        if extra is not None:
            loss = extra if loss is None else tf.cast(loss, tf.float32) + extra
            logged = extra if logged is None else tf.cast(logged, tf.float32) + extra
        return loss, logged, by_term if len(structure.terms) > 1 else []

    def _compiled_loss(
        self, y_pred: Any, share: Share, weights: Any, undo: float, *, takes_mean: bool
    ) -> tuple[Any, list[tf.Tensor]]:
        model, found = self.structure.model, []
        if not keras_adapter.has_compiled_loss(model):
            return None, found
        scaled = [
            ScaledLoss(
                entry.loss,
                ratio=share.row_ratio
                if term.denominator == ROWS or (takes_mean and term.is_unreduced)
                else share.vote
                if term.denominator == NOTHING
                else share.term_ratios[index],
                undo=undo if term.is_mean else 1.0,
                found=found,
                takes_mean=takes_mean and term.is_unreduced,
            )
            for index, (entry, term) in enumerate(
                zip(keras_adapter.loss_entries(model), self.structure.terms, strict=True)
            )
        ]
        with keras_adapter.replaced_losses(model, scaled):
            loss = keras_adapter.call_compiled_loss(model, share.y, y_pred, weights)
        return loss, found


def _current(scope: keras.StatelessScope, variable: keras.Variable) -> tf.Tensor:
    value: Any = scope.get_current_value(variable)
    return tf.convert_to_tensor(value)


def _flat(value: Any) -> tf.Tensor:
    return tf.reshape(tf.convert_to_tensor(value), [-1])


def _num_rows(x: Any) -> tf.Tensor:
    first = next(leaf for leaf in keras.tree.flatten(x) if leaf is not None)
    return tf.cast(tf.shape(first)[0], tf.float32)
