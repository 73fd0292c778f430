"""Keep a training's state, and let another training go on from it, as a task does."""

from types import SimpleNamespace
from typing import Any

from kdist.assembly.resuming import GoingOn
from kdist.training.checkpoints.folder import CheckpointFolder
from kdist.training.checkpoints.keeper import CheckpointKeeper, Schedule
from kdist.training.plan import TrainingState


def keep(run: Any, folder: Any) -> CheckpointKeeper:
    """Let a prepared training write what it comes to into a folder."""
    trainer = run.trainer
    keeper = CheckpointKeeper(
        CheckpointFolder(str(folder)),
        Schedule(every_epochs=100),
        model=run.model,
        loop=run.engine.loop,
        bridge=run.bridge,
        state=lambda: trainer.state,
        facts={},
        on_saved=lambda *arguments, **more: None,
    )
    trainer.keeper = keeper
    return keeper


def go_on(run: Any, folder: Any) -> TrainingState:
    """Let a prepared training go on from the newest checkpoint; return where that is."""
    warnings: list[str] = []
    saved = CheckpointFolder(str(folder)).newest_whole(warnings.append)
    assert saved is not None and not warnings
    state = TrainingState.from_position(saved.state["position"])
    going_on = GoingOn(saved=saved, state=state, with_optimizer=True, stops=False)
    parts: Any = SimpleNamespace(engine=run.engine, bridge=run.bridge, model=run.model)
    going_on.let_all_take_it(parts, run.trainer, keep(run, folder))
    return state
