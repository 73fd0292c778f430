"""The parameter store of the synchronous modes: one copy of every bucket on each replica's device.

The store owns the values while a model trains. Small variables live in flat buckets; a large one
is shared with the model (the Keras variable becomes a view of the bucket), so it exists once.
"""

import zlib
from collections.abc import Collection, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.bucket_values import split_members
from kdist.distribute.buckets.layout import Bucket, BucketLayout
from kdist.distribute.buckets.spilled import KeptTable
from kdist.distribute.model.step_types import StepValues
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.shares import WorkerShare
from kdist.distribute.store.optimizer import StoreOptimizer, build_store_optimizer, inner_optimizer
from kdist.distribute.store.worker_sum import WorkerSum
from kdist.distribute.values import to_numpy


class ReplicatedStore:
    """Buckets, states and optimizer of one process, mirrored over its replicas.

    With `MultiWorkerMirroredStrategy` creating the variables takes the chief's values, so every
    worker must create its store at the same time. Reads and `apply` belong into `tf.function`s.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        structure: ModelStructure,
        layout: BucketLayout,
        share: WorkerShare,
    ):
        """Create the variables; the model keeps its values."""
        self.strategy = strategy
        self.add_over_workers = WorkerSum(strategy)
        self._num_workers = share.num_workers
        self._is_first_worker = share.worker_index == 0
        self.structure = structure
        self.layout = layout
        self._fingerprints: list[int] = []
        self._is_mirrored = strategy.num_replicas_in_sync > 1
        self._no_states = tf.Variable(tf.zeros([0]), trainable=False, name="no_states")
        with strategy.scope():
            self.buckets = [self._create_bucket(i, b) for i, b in enumerate(layout.buckets)]
            for variable in structure.frozen if self._is_mirrored else ():
                keras_adapter.rebind(variable, _mirrored(variable))
            self.states = self._create_states()
            self.int_states = [
                tf.Variable(
                    variable.value,
                    trainable=False,
                    name="int_state",
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
                for variable in structure.int_states
            ]
            self.optimizer: StoreOptimizer = self._create_optimizer()

    def _create_bucket(self, index: int, bucket: Bucket) -> keras.Variable:
        members = [self.structure.trainable[m.variable_index] for m in bucket.members]
        if not bucket.is_flat:
            if self._is_mirrored:
                keras_adapter.rebind(members[0], _mirrored(members[0]))
            return members[0]
        return keras.Variable(
            np.concatenate([to_numpy(v).ravel() for v in members]),
            dtype=bucket.dtype,
            name=f"bucket_{index}",
        )

    def _create_optimizer(self) -> StoreOptimizer:
        """Return the clone; by itself it would clip tables that are updated by rows apart."""
        template = self.structure.model.optimizer
        norm = inner_optimizer(template).global_clipnorm if self.layout.has_row_tables else None
        changes = {} if norm is None else {"global_clipnorm": None}
        optimizer = build_store_optimizer(template, self.buckets, self.layout, **changes)
        optimizer.global_clipnorm = norm
        return optimizer

    def _create_states(self) -> tf.Variable:
        """Return the float states; no states stay local: an empty collective crashes."""
        value = pack_states(self.structure.float_states)
        if value.size:
            return tf.Variable(tf.constant(value), trainable=False, name="float_states")
        return self._no_states

    def look_up(self, wanted: Sequence[tuple[int, tf.Tensor]]) -> list[tf.Tensor]:
        """Return rows of buckets, `[number, columns]` each; within a replica on its own device."""
        tables: list[Any] = [self.buckets[index].value for index, _ in wanted]
        return [tf.gather(table, rows) for table, (_, rows) in zip(tables, wanted, strict=True)]

    def read(self, seeds: Sequence[tf.Tensor], *, leave_out: Collection[int] = ()) -> StepValues:
        """Return the current values; within a replica those of its own device.

        Args:
            seeds: Of the step.
            leave_out: Buckets not to read; `()` stands in their place.
        """
        return StepValues(
            buckets=[
                () if index in leave_out else tf.convert_to_tensor(bucket.value)
                for index, bucket in enumerate(self.buckets)
            ],
            float_states=unpack_states(
                tf.convert_to_tensor(self.states), self.structure.float_states
            ),
            int_states=[tf.convert_to_tensor(v) for v in self.int_states],
            seeds=list(seeds),
            frozen=[tf.convert_to_tensor(v.value) for v in self.structure.frozen],
            positions=[],
        )

    def apply(
        self, gradients: Sequence[Any], state_changes: tf.Tensor, int_states: Sequence[Any]
    ) -> None:
        """Take one update on every replica; call it in cross-replica context."""
        self.optimizer.apply(gradients)
        if self.structure.float_states:
            self.states.assign_add(state_changes)
        for variable, value in zip(self.int_states, int_states, strict=True):
            variable.assign(value)

    def write_to_model(self) -> None:
        """Give the model's variables the store's values."""
        for bucket, variable in zip(self.layout.buckets, self.buckets, strict=True):
            if bucket.is_flat:
                for index, value in split_members(bucket, to_numpy(variable)):
                    self.structure.trainable[index].assign(value)
        self.write_states_to_model()
        self._fingerprints = self._shared_fingerprints()

    def write_states_to_model(self) -> None:
        """Give the model's non-trainable variables the store's values."""
        if self.structure.float_states:
            write_states(self.structure.float_states, self.states.numpy())
        for variable, value in zip(self.structure.int_states, self.int_states, strict=True):
            variable.assign(value.numpy())

    def _shared_fingerprints(self) -> list[int]:
        return fingerprint(self._shared())

    def _shared(self) -> list[keras.Variable]:
        """Return the variables that store and model have in common."""
        own = [
            variable
            for bucket, variable in zip(self.layout.buckets, self.buckets, strict=True)
            if not bucket.is_flat
        ]
        return own + self.structure.frozen

    def read_from_model(self) -> bool:
        """Take over what somebody wrote into the model; return whether anything differed.

        Large and frozen variables are shared with the model; a fingerprint taken by
        `write_to_model` tells.
        """
        changed = self._fingerprints != self._shared_fingerprints()
        for bucket, variable in zip(self.layout.buckets, self.buckets, strict=True):
            if not bucket.is_flat:
                continue
            members = [self.structure.trainable[m.variable_index] for m in bucket.members]
            value = np.concatenate([to_numpy(v).ravel() for v in members])
            if not np.array_equal(value, to_numpy(variable), equal_nan=True):
                variable.assign(value)
                changed = True
        states = pack_states(self.structure.float_states)
        if not np.array_equal(states, self.states.numpy(), equal_nan=True):
            self.states.assign(states)
            changed = True
        for value, variable in zip(self.structure.int_states, self.int_states, strict=True):
            variable.assign(to_numpy(value))
        return changed

    @property
    def kept_tables(self) -> list[KeptTable]:
        """Return nothing: the model has all values that it trains in its own process."""
        return []

    def take_from_chief(self, *, with_optimizer: bool = False) -> None:
        """Replace this worker's values by the chief's; all workers call it together."""
        if self._num_workers == 1:
            return
        optimizer = self.optimizer.optimizer.variables if with_optimizer else ()
        shared = [v.value for v in (*self.buckets, *self.structure.frozen, *optimizer)]
        for variable in [*shared, self.states, *self.int_states]:
            value = np.asarray(variable.numpy())
            if not value.size:  # A collective of nothing crashes the process.
                continue
            mine = value if self._is_first_worker else np.zeros_like(value)
            variable.assign(self.add_over_workers(mine))

    @property
    def optimizers(self) -> list[StoreOptimizer]:
        """Return the one optimizer of this store."""
        return [self.optimizer]

    @property
    def num_updates(self) -> int:
        """Return the optimizer updates that reached the model."""
        return self.optimizer.num_updates


def _mirrored(variable: keras.Variable) -> tf.Variable:
    return tf.Variable(
        variable.value,
        trainable=bool(variable.trainable),
        name=variable.name,
    )


def fingerprint(variables: Sequence[keras.Variable]) -> list[int]:
    """Return a checksum of each variable's value, to tell later whether somebody wrote it."""
    return [zlib.crc32(to_numpy(variable).tobytes()) for variable in variables]


def pack_states(variables: Sequence[keras.Variable]) -> np.ndarray:
    """Return floating states as one float32 vector."""
    parts = [to_numpy(v).astype(np.float32).ravel() for v in variables]
    return np.concatenate([np.zeros([0], np.float32), *parts])


def unpack_states(vector: tf.Tensor, variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Return the states of a packed vector, in the variables' shapes and dtypes."""
    if not variables:
        return []
    sizes = [int(np.prod(v.shape, dtype=np.int64)) for v in variables]
    return [
        tf.cast(tf.reshape(part, v.shape), v.dtype)
        for part, v in zip(tf.split(vector, sizes), variables, strict=True)
    ]


def write_states(variables: Sequence[keras.Variable], vector: np.ndarray) -> None:
    """Assign a packed vector of states to the model's variables."""
    offset = 0
    for variable in variables:
        size = int(np.prod(variable.shape, dtype=np.int64))
        variable.assign(vector[offset : offset + size].reshape(variable.shape))
        offset += size
