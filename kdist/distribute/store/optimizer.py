"""The optimizer of a store: a clone of the model's optimizer, built on buckets.

Keras' public `optimizer.apply` does the update, with its clipping, weight decay, accumulation and
moving averages. What is added here: which optimizers may see concatenated variables, loss scaling
that works outside a replica, and the way from bucket slots back to per-variable slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.graph_values import eagerly
from kdist.distribute.store.fused_updates import fused_class
from kdist.distribute.store.gradients import all_finite, divide
from kdist.distribute.store.row_rules import sum_repeated, update_rows
from kdist.distribute.values import run, to_numpy
from kdist.errors import ConfigError

# Updates that treat every element by itself, so that an update of a concatenation equals the
# updates of its parts (each checked by tests/engine/test_optimizer.py).
ELEMENTWISE_OPTIMIZERS = frozenset(
    {
        keras.optimizers.SGD,
        keras.optimizers.Adam,
        keras.optimizers.AdamW,
        keras.optimizers.Adamax,
        keras.optimizers.Adadelta,
        keras.optimizers.Adagrad,
        keras.optimizers.RMSprop,
        keras.optimizers.Ftrl,
        keras.optimizers.Lion,
        keras.optimizers.Nadam,
    }
)


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer that updates weights, behind a loss scale if there is one."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer.inner_optimizer
    return optimizer


def updating_optimizers(
    optimizer: keras.optimizers.Optimizer,
) -> tuple[keras.optimizers.Optimizer, ...]:
    """Return the optimizers that do the updates: the ones inside a `MultiOptimizer`, or the one."""
    inner = inner_optimizer(optimizer)
    return tuple(getattr(inner, "optimizers", ())) or (inner,)


def can_flatten(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether this optimizer may update many variables as one vector."""
    inner = inner_optimizer(optimizer)
    return type(inner) in ELEMENTWISE_OPTIMIZERS and not inner.clipnorm


def clone_optimizer(
    optimizer: keras.optimizers.Optimizer, **changes: Any
) -> keras.optimizers.Optimizer:
    """Return a new optimizer with the same configuration, call it inside a strategy's scope.

    Args:
        optimizer: The optimizer to copy; its slots are not copied.
        **changes: Constructor arguments of the inner optimizer to replace, such as clipnorm=None.

    Raises:
        ConfigError: If the optimizer cannot be rebuilt from its own configuration.
    """
    try:
        custom: dict[str, Any] = {
            type(o).__name__: type(o) for o in (optimizer, inner_optimizer(optimizer))
        }
        schedule = keras_adapter.learning_rate_setting(inner_optimizer(optimizer))
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            custom[type(schedule).__name__] = type(schedule)
        with keras.saving.custom_object_scope(custom):
            inner = inner_optimizer(optimizer)
            config = {**eagerly(inner.get_config), **changes}
            clone = fused_class(type(inner)).from_config(config)
            if inner is optimizer:
                return clone
            return keras.optimizers.LossScaleOptimizer(
                clone,
                initial_scale=optimizer.initial_scale,
                dynamic_growth_steps=optimizer.dynamic_growth_steps,
                name=optimizer.name,
            )
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"The optimizer {type(optimizer).__name__} cannot be rebuilt from its get_config(): "
            f"{error} Give it a get_config that returns its constructor's arguments."
        ) from error


@dataclass(frozen=True)
class Slot:
    """A slot of bucket `bucket_index`; `kind` counts the slots of that bucket from zero."""

    bucket_index: int
    kind: int
    variable: keras.Variable


class StoreOptimizer:
    """A built clone, its buckets, and what belongs to which bucket."""

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        buckets: Sequence[keras.Variable],
        layout: BucketLayout,
    ):
        """Hold an optimizer that `build_store_optimizer` built on `buckets`."""
        self.optimizer = optimizer
        self.buckets = list(buckets)
        self.layout = layout
        self.slots: tuple[Slot, ...] = ()
        # What building assigned to slots in a graph, where it is yet to be run: ScheduleFreeAdamW
        # begins with copies of the weights.
        self.first_assignments: tuple[Any, ...] = ()
        self.global_clipnorm: float | None = None

    @property
    def inner(self) -> keras.optimizers.Optimizer:
        """Return the optimizer behind a loss scale."""
        return inner_optimizer(self.optimizer)

    def loss_scale(self) -> tf.Tensor:
        """Return the factor for the loss before gradients are taken, a float32 scalar."""
        return tf.cast(self.optimizer.scale_loss(tf.ones((), tf.float32)), tf.float32)

    def apply(self, gradients: Sequence[Any]) -> None:
        """Update the buckets; call it in cross-replica context with reduced gradients."""
        if self.inner is self.optimizer:
            self.update(gradients)
            return
        self._apply_scaled(gradients)

    def update(self, gradients: Sequence[Any]) -> None:
        """Update the buckets with finite gradients without loss scale."""
        gradients = [
            sum_repeated(gradient) if bucket.is_by_rows else gradient
            for gradient, bucket in zip(gradients, self.layout.buckets, strict=True)
        ]
        if self.global_clipnorm is not None:
            scale = self.inner.loss_scale_factor or 1.0  # The updates divide by it afterwards.
            gradients, _ = tf.clip_by_global_norm(gradients, self.global_clipnorm * scale)
        whole = []
        for index, (gradient, bucket) in enumerate(zip(gradients, self.buckets, strict=True)):
            if self.layout.buckets[index].is_by_rows:
                slots = [slot.variable for slot in self.slots if slot.bucket_index == index]
                update_rows(self.inner, bucket, slots, gradient)
            else:
                whole.append((gradient, bucket))
        if whole:
            self.inner.apply(*zip(*whole, strict=True))
        else:
            keras_adapter.own_iterations(self.inner).assign_add(1)

    def _apply_scaled(self, gradients: Sequence[Any]) -> None:
        """Update unless a gradient overflowed, and move the scale as Keras' rule says.

        The rule (Micikevicius et al., Mixed Precision Training, 2018, section 3.2): halve on
        overflow and skip the step; double after `dynamic_growth_steps` good steps.
        `LossScaleOptimizer.apply` itself refuses to run outside a replica.
        """
        finite = all_finite(gradients)

        def update() -> tf.Tensor:
            scale = tf.convert_to_tensor(self.optimizer.dynamic_scale)
            self.update([divide(g, scale) for g in gradients])
            return tf.constant(0)

        tf.cond(finite, update, lambda: tf.constant(0))
        self.move_loss_scale(finite)

    def move_loss_scale(self, finite: tf.Tensor) -> None:
        """Halve the loss scale after an overflow, double it after a long good stretch."""
        outer = self.optimizer
        scale = tf.convert_to_tensor(outer.dynamic_scale)
        counter = tf.convert_to_tensor(outer.step_counter)
        grows = tf.logical_and(finite, tf.equal(counter, outer.dynamic_growth_steps - 1))
        keeps_counting = tf.logical_and(finite, tf.logical_not(grows))
        outer.step_counter.assign(tf.where(keeps_counting, counter + 1, tf.zeros_like(counter)))
        outer.dynamic_scale.assign(
            tf.where(finite, tf.where(grows, scale * 2.0, scale), scale * 0.5)
        )

    @property
    def num_updates(self) -> int:
        """Return the updates that reached the model: accumulated and skipped steps do not count."""
        steps = self.inner.gradient_accumulation_steps or 1
        return int(to_numpy(keras_adapter.own_iterations(self.inner))) // steps

    def finalize(self) -> bool:
        """Write moving averages over the weights if the optimizer keeps any; return whether."""
        if not any(each.use_ema for each in updating_optimizers(self.optimizer)):
            return False
        run(self.buckets[0], lambda: self.optimizer.finalize_variable_values(self.buckets))
        return True


def build_store_optimizer(
    template: keras.optimizers.Optimizer,
    buckets: Sequence[keras.Variable],
    layout: BucketLayout,
    **changes: Any,
) -> StoreOptimizer:
    """Clone the model's optimizer and build it on buckets; call it inside the strategy's scope."""
    optimizer = clone_optimizer(template, **changes)
    store = StoreOptimizer(optimizer, buckets, layout)
    excluded = [
        variable
        for variable, bucket in zip(buckets, layout.buckets, strict=True)
        if not bucket.has_weight_decay
    ]
    if excluded:
        for each in updating_optimizers(store.optimizer):
            each.exclude_from_weight_decay(var_list=excluded)
    return _built(store)


def adopt_optimizer(model: keras.Model, layout: BucketLayout) -> StoreOptimizer:
    """Build the model's own, unbuilt optimizer on its own variables, a bucket for each."""
    return _built(StoreOptimizer(model.optimizer, model.trainable_variables, layout))


def _built(store: StoreOptimizer) -> StoreOptimizer:
    optimizer, buckets = store.optimizer, store.buckets
    index_of = {id(variable): index for index, variable in enumerate(buckets)}
    num_before = _num_operations()
    with keras_adapter.recorded_slots(store.inner) as recorded:
        optimizer.build(list(buckets))
    store.first_assignments = _assignments_since(num_before)
    counts = [0] * len(buckets)
    slots = []
    for reference, variable in recorded:
        bucket_index = index_of[id(reference)]
        slots.append(Slot(bucket_index, counts[bucket_index], variable))
        counts[bucket_index] += 1
    store.slots = tuple(slots)
    return store


def _num_operations() -> int:
    return 0 if tf.executing_eagerly() else len(tf.compat.v1.get_default_graph().get_operations())


def _assignments_since(num_before: int) -> tuple[Any, ...]:
    """Return the assignments that a graph has got since it had so many operations.

    What variables are created with is not among them.
    """
    if tf.executing_eagerly():
        return ()
    created = {variable.initializer for variable in tf.compat.v1.global_variables()}
    added = tf.compat.v1.get_default_graph().get_operations()[num_before:]
    return tuple(op for op in added if op.type == "AssignVariableOp" and op not in created)
