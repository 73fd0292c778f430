"""Going on from a checkpoint: whether it is this run's, and how all tasks take it."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kdist.assembly.identity import (
    Facts,
    changed_rates,
    has_same_optimizer,
    refuse_other_run,
    refuse_other_shapes,
)
from kdist.assembly.run_parts import Parts
from kdist.assembly.run_start import is_inside
from kdist.config.schema import Config
from kdist.errors import ConfigError
from kdist.records.result import COMPLETED, read_result
from kdist.records.resumption import beyond_wish, further_text
from kdist.records.run_folder import RunFolder
from kdist.training.checkpoints.callback_state import prepare_to_go_on
from kdist.training.checkpoints.canonical import holds_optimizer, restore
from kdist.training.checkpoints.folder import CheckpointFolder
from kdist.training.checkpoints.format import SavedCheckpoint
from kdist.training.checkpoints.keeper import CALLBACKS, OWN, SUMS, CheckpointKeeper
from kdist.training.peers import Peers
from kdist.training.plan import TrainingPlan, TrainingState
from kdist.training.trainer import Trainer


@dataclass(kw_only=True)
class GoingOn:
    """A checkpoint, checked, and ready to be taken by all training tasks.

    Attributes:
        saved: The checkpoint.
        state: How far training was.
        with_optimizer: Whether its slots and counters are taken, too.
        stops: Whether a callback had stopped training.
        learning_rates: What the optimizer is given in place of the checkpoint's, if anything.
    """

    saved: SavedCheckpoint
    state: TrainingState
    with_optimizer: bool
    stops: bool
    learning_rates: Sequence[float | None] = ()

    @classmethod
    def check(
        cls, saved: SavedCheckpoint, parts: Parts, facts: Facts, folder: RunFolder, config: Config
    ) -> "GoingOn":
        """Return how to go on from a checkpoint. The chief calls it, before anything is changed.

        Raises:
            ConfigError: If it belongs to another model, optimizer or data.
        """
        content = saved.state
        before = content["facts"]
        if not config.resume_force:
            refuse_other_run(before, facts, saved.folder)
        refuse_other_shapes(before, facts, saved.folder)
        state = TrainingState.from_position(content["position"])
        if _has_other_batches(before, facts):  # Only by force: epochs are what counts then.
            state.batches_seen = state.epochs_done * parts.plan.steps_per_epoch
            state.step_in_epoch, state.epoch_s = 0, 0.0
        return cls(
            saved=saved,
            state=state,
            with_optimizer=has_same_optimizer(before, facts)
            and holds_optimizer(saved, parts.engine.loop.store),
            # Only by force as well; rates that a schedule or callbacks have come to are kept.
            learning_rates=[
                rate if rate in changed_rates(before, facts) else None
                for rate in parts.bridge.view.rates
            ],
            stops=bool(content["stop_training"]) and not _is_completed(folder),
        )

    def is_beyond(
        self, plan: TrainingPlan, folder: RunFolder, checkpoints: CheckpointFolder, config: Config
    ) -> bool:
        """Return whether the run has trained further than is asked for, and tell the user.

        Raises:
            ConfigError: If it is another run, which was named to go on from, or whose checkpoints
                lie where those of a new run were to go.
        """
        beyond = beyond_wish(self.state.batches_seen, plan.total_steps, config)
        if beyond is None:
            return False
        if not is_inside(self.saved.folder, checkpoints.path):
            raise ConfigError(
                f"The run to go on from has already trained further: {beyond}. Received: resume="
                f"{config.resume}. Ask for more (epochs=...), name an earlier checkpoint, or take "
                f"its weights only: init_from={config.resume}."
            )
        if folder.is_new:
            raise ConfigError(
                f"The checkpoints there have already trained further: {beyond}. Received: "
                f"checkpoint.dir={checkpoints.path}. Ask for more (epochs=...), or give the new "
                "run a folder of its own there."
            )
        sys.stdout.write(further_text(folder.path, beyond) + "\n")
        return True

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.csv of the epochs that have ended."""
        return list(self.saved.state["rows"])

    def notes(self) -> list[str]:
        """Return what the user should know, a sentence each."""
        found = [
            f"Going on from {self.saved.folder}: epoch {self.state.epochs_done + 1}, "
            f"batch {self.state.step_in_epoch} of it."
        ]
        if not self.with_optimizer:
            found.append("The optimizer is another one than the checkpoint's, and begins anew.")
        elif rates := [f"{rate:g}" for rate in self.learning_rates if rate is not None]:
            found.append(f"The learning rate is {', '.join(rates)} from here on.")
        return found

    def let_all_take_it(self, parts: Parts, trainer: Trainer, keeper: CheckpointKeeper) -> None:
        """Let the chief's trainer begin at the checkpoint; peers follow with `follow`."""
        prepare_to_go_on(parts.bridge.all_callbacks)
        keeper.go_on_after(self.rows(), self.state)
        content = self.saved.state

        def take() -> None:
            store, own_state = parts.engine.loop.store, parts.engine.own_state
            sums = self.saved.read_all(SUMS)
            if own_state is not None:
                own_state.make_variables(sums)
            restore(
                parts.model,
                store,
                self.saved.read,
                read_blocks=self.saved.read_blocks,
                with_optimizer=self.with_optimizer,
            )
            parts.bridge.view.set(self.learning_rates)
            store.take_from_chief(with_optimizer=True)
            if self.with_optimizer and own_state is not None:
                own_state.restore_own(self.saved.read_all(OWN))
            if self.state.step_in_epoch:
                parts.engine.loop.restore_sums(sums)
            assert keeper.callbacks is not None
            keeper.callbacks.restore(content["callbacks"], self.saved.read_all(CALLBACKS))
            parts.bridge.view.pull()
            parts.bridge.agree_on_stop(self.stops)

        trainer.go_on_from(self.state, take)

    def as_decision(self) -> Mapping[str, Any]:
        """Return what peers need to know."""
        return {"position": self.state.as_position(), "stops": self.stops}


# What peers hear where nothing is left to train.
NOTHING_LEFT = {"position": None, "is_over": True}


def follow(parts: Parts, trainer: Trainer, peers: Peers) -> bool:
    """Begin where the chief begins; every training task but the chief calls it.

    Returns whether there is something to train.
    """
    decision = peers.agree({})
    if decision["position"] is None:
        return not decision.get("is_over")
    state = TrainingState.from_position(decision["position"])

    def take() -> None:
        parts.engine.loop.store.take_from_chief(with_optimizer=True)
        if state.step_in_epoch:
            parts.engine.loop.restore_sums({})
        parts.bridge.view.pull()
        parts.bridge.agree_on_stop(decision["stops"])

    trainer.go_on_from(state, take)
    return True


def _has_other_batches(before: Facts, now: Facts) -> bool:
    """Return whether the batches of an epoch hold other rows than those of a checkpoint."""
    return any(
        before.get(part, {}).get(key, value) != value
        for part, key in (
            ("data", "batches an epoch"),
            ("data", "training rows"),
            ("settings", "data.batch_size"),
        )
        if (value := now[part].get(key)) is not None
    )


def _is_completed(folder: RunFolder) -> bool:
    try:
        return read_result(folder.result_json)["status"] == COMPLETED
    except ConfigError:
        return False
