"""Whether all training tasks read the same data: where they do not, collectives would not match."""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.assembly.building import Sources
from kdist.cluster.task import Task
from kdist.errors import ConfigError
from kdist.training.peers import Peers
from kdist.training.trainer import TrainingPlan

_ROWS_TO_COMPARE = 256


def refuse_other_data(
    sources: Sources, plan: TrainingPlan, peers: Peers, *, task: Task, chief: Task
) -> None:
    """Compare this task's data with the chief's; all training tasks call it together.

    Raises:
        ConfigError: If numbers of rows or batches, or the first rows, differ.
    """
    own = data_facts(sources, plan)
    refuse_other_facts(own, peers.agree({"data": own})["data"], task=task, chief=chief)


def refuse_other_facts(
    own: Mapping[str, Any], theirs: Mapping[str, Any], *, task: Task, chief: Task
) -> None:
    """Refuse data that is not the chief's.

    Raises:
        ConfigError: Naming what differs.
    """
    if theirs != own:
        found = "; ".join(
            f"{what}: {theirs.get(what)} on {chief}, {own[what]} on {task}"
            for what in own
            if theirs.get(what) != own[what]
        )
        raise ConfigError(
            f"{task} reads other data than {chief}. Received: {found}. Every task must be given "
            "the same rows in the same order: copy the same files to all machines, and seed what "
            "draws or shuffles."
        )


def data_facts(sources: Sources, plan: TrainingPlan) -> Mapping[str, Any]:
    """Return what must be the same on all tasks that train; JSON can hold it."""
    facts: dict[str, Any] = {"batches an epoch": plan.steps_per_epoch}
    for name, source in (("training", sources.train), ("validation", sources.validation)):
        if source is None:
            facts[f"{name} rows"] = "none"
            continue
        facts[f"{name} rows"] = source.num_examples
        facts[f"{name} batches"] = source.batches_per_pass
        if source.kind != "per_worker":  # Each worker's own affair.
            facts[f"checksum of the first {name} rows"] = checksum(
                source.first_batch(_ROWS_TO_COMPARE)
            )
    return facts


def checksum(batch: Any) -> int:
    """Return a checksum of a nest of arrays."""
    total = 0
    for leaf in tf.nest.flatten(batch):
        array = np.asarray(leaf)
        content = array.tolist() if array.dtype.kind in "OUS" else array.tobytes()
        total = zlib.crc32(content if isinstance(content, bytes) else repr(content).encode(), total)
    return total
