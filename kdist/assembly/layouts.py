"""The buckets of a built model, as the configuration wants them."""

import tensorflow as tf

from kdist.config.schema import Config
from kdist.distribute import keras_adapter
from kdist.distribute.bucket_plan import FLAT_BUCKET_BYTES, SERVER_BUCKET_BYTES, plan_buckets
from kdist.distribute.layout import BucketLayout, VariableInfo
from kdist.distribute.optimizer import can_flatten, inner_optimizer
from kdist.distribute.structure import ModelStructure


def plan_layout(config: Config, structure: ModelStructure, *, num_servers: int) -> BucketLayout:
    """Return the buckets of a model, dealt to `num_servers` servers (0: this process)."""
    return plan_buckets(
        variable_infos(structure),
        can_flatten=can_flatten(structure.model.optimizer),
        num_servers=max(1, num_servers),
        placement=config.strategy.placement,
        partition_bytes=config.strategy.partition_bytes,
        flat_bucket_bytes=SERVER_BUCKET_BYTES if num_servers else FLAT_BUCKET_BYTES,
    )


def variable_infos(structure: ModelStructure) -> list[VariableInfo]:
    """Return what the layout needs to know of each trainable variable."""
    optimizer = inner_optimizer(structure.model.optimizer)
    return [
        VariableInfo(
            index=index,
            path=variable.path,
            shape=tuple(int(size) for size in variable.shape),
            dtype=str(variable.dtype),
            item_bytes=tf.as_dtype(variable.dtype).size,
            needs_own_bucket=variable.constraint is not None,
            has_weight_decay=keras_adapter.uses_weight_decay(optimizer, variable),
            has_sparse_gradient=index in structure.sparse,
            is_by_rows=index in structure.by_rows,
        )
        for index, variable in enumerate(structure.trainable)
    ]
