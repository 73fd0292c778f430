"""The buckets of a built model, as the configuration wants them."""

from collections.abc import Sequence

import tensorflow as tf

from kdist.config.schema import Config
from kdist.distribute import keras_adapter
from kdist.distribute.buckets.bucket_plan import (
    FLAT_BUCKET_BYTES,
    SERVER_BUCKET_BYTES,
    plan_buckets,
)
from kdist.distribute.buckets.layout import Bucket, BucketLayout, VariableInfo
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.store.optimizer import can_flatten, inner_optimizer, updating_optimizers
from kdist.training.report.facts import Block, ServerContents
from kdist.training.report.formats import bytes_text, plural_text


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


def forgotten_exclusions(structure: ModelStructure) -> tuple[str, ...]:
    """Return a warning if `model.keras` will not say what is left out of weight decay."""
    optimizers = updating_optimizers(structure.model.optimizer)
    left_out = [info.path for info in variable_infos(structure) if not info.has_weight_decay]
    if not left_out or not any(each.weight_decay for each in optimizers):
        return ()
    shown = ", ".join(left_out[:3]) + (", ..." if len(left_out) > 3 else "")
    return (
        "Keras does not save what exclude_from_weight_decay leaves out: an optimizer loaded from "
        f"model.keras decays all variables, those left out here included ({shown}). Call it again "
        "before training on.",
    )


def server_contents(structure: ModelStructure, layout: BucketLayout) -> tuple[ServerContents, ...]:
    """Return what each parameter server holds."""
    return tuple(
        ServerContents(
            name=f"ps-{index}",
            blocks=tuple(
                Block(label=_label(structure, bucket), num_bytes=bucket.num_bytes)
                for bucket in (layout.buckets[i] for i in layout.of_server(index))
            ),
        )
        for index in range(layout.num_servers)
    )


def server_lines(servers: Sequence[ServerContents]) -> tuple[str, ...]:
    """Return one line a server: its bytes, its buckets and its largest one."""
    lines = []
    for server in servers:
        blocks = plural_text(len(server.blocks), "bucket")
        line = f"{server.name}: {bytes_text(server.num_bytes)} in {blocks}"
        if server.blocks:
            largest = max(server.blocks, key=lambda block: block.num_bytes)
            line += f", the largest {bytes_text(largest.num_bytes)} ({largest.label})"
        lines.append(line)
    return tuple(lines)


def _label(structure: ModelStructure, bucket: Bucket) -> str:
    member, *others = bucket.members
    if others:
        return f"{len(bucket.members)} variables"
    path = structure.trainable[member.variable_index].path
    if member.rows is None:
        return path
    if member.rows.step == 1:
        return f"{path}[{member.rows.first}:{member.rows.stop}]"
    return f"{path}[{member.rows.first}::{member.rows.step}]"
