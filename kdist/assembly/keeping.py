"""Makes the keeper of a run's checkpoints, and where they go."""

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import keras

from kdist.assembly.cluster_link import say
from kdist.assembly.run_parts import Parts, Place
from kdist.config.schema import Config
from kdist.records.events import EventLog
from kdist.records.run_folder import RunFolder
from kdist.training.checkpoints.folder import CheckpointFolder, KeepRule, Written
from kdist.training.checkpoints.keeper import CheckpointKeeper, Schedule
from kdist.training.checkpoints.shards import SharedFolder
from kdist.training.trainer import Trainer


def checkpoints_of(config: Config, folder: RunFolder) -> CheckpointFolder:
    """Return where the checkpoints of a run go, and which of them stay."""
    wanted = config.checkpoint
    return CheckpointFolder(
        wanted.dir or str(folder.checkpoints),
        KeepRule(
            newest=wanted.keep,
            keeps_best=wanted.keep_best,
            monitor=wanted.monitor,
            mode=wanted.mode,
        ),
    )


def make_keeper(
    place: Place,
    parts: Parts,
    trainer: Trainer,
    checkpoints: CheckpointFolder,
    facts: Mapping[str, Any],
    events: EventLog,
    warn: Callable[[str], None],
) -> CheckpointKeeper:
    """Return the keeper of a run; the chief calls it.

    Args:
        place: The task.
        parts: What trains.
        trainer: Whose state is kept.
        checkpoints: Where checkpoints go.
        facts: What must be the same when the run goes on.
        events: Told of each checkpoint.
        warn: Takes a sentence for result.json that was shown.
    """
    wanted = place.config.checkpoint

    def on_saved(written: Written, *, step: int, pause_s: float, write_s: float) -> None:
        events.write(
            "checkpoint_saved",
            path=written.path,
            step=step,
            pause_s=round(pause_s, 6),
            write_s=round(write_s, 6),
            bytes=written.num_bytes,
        )
        place.link.send("progressed", batches_seen=step)

    def show(warning: str) -> None:
        say(warning)
        warn(warning)

    return CheckpointKeeper(
        checkpoints,
        Schedule(
            every_steps=wanted.every_steps,
            every_epochs=wanted.every_epochs,
            every_seconds=wanted.every_seconds,
        ),
        model=parts.model,
        loop=parts.engine.loop,
        bridge=parts.bridge,
        own_state=parts.engine.own_state,
        state=lambda: trainer.state,
        facts={
            "facts": facts,
            "inputs": _inputs(parts),
            "mode": place.traits.label,
            "num_replicas": parts.num_replicas,
            "attempt": place.request.attempt,
            "time": time.time(),
            "versions": {name: version(name) for name in ("kdist", "tensorflow", "keras")},
        },
        on_saved=on_saved,
        is_async=wanted.async_,
        copy_bytes=wanted.copy_bytes,
        shared=SharedFolder(show),
    )


def _inputs(parts: Parts) -> Any:
    """Return shape and dtype of each input, in the nest that the model is called with."""
    x = parts.sources.train.element_spec[0]
    return keras.tree.map_structure(lambda spec: f"{spec.dtype.name}{spec.shape.as_list()}", x)
