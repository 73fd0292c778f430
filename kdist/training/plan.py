"""How long to train, and what training has come to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How long to train, in batches; the same on every task.

    Attributes:
        epochs: Epochs to run.
        steps_per_epoch: Batches an epoch.
        max_steps: Batches after which training stops, or `None`.
        steps_per_call: Batches in one call of the runtime.
        replicas_in_flight: Calls that run at once (workers of an asynchronous mode).
        validation_batches: Validation batches to use, or `None` for all.
        pause_every_steps: Batches of whose multiples none may lie inside a stretch of steps, since
            something happens there; or `None`.
    """

    epochs: int
    steps_per_epoch: int
    max_steps: int | None = None
    steps_per_call: int = 1
    replicas_in_flight: int = 1
    validation_batches: int | None = None
    pause_every_steps: int | None = None

    @property
    def total_steps(self) -> int:
        """Return the batches that training takes if nothing stops it."""
        total = self.epochs * self.steps_per_epoch
        return total if self.max_steps is None else min(total, self.max_steps)

    def stretch(self, batches_seen: int, wanted: int) -> int:
        """Return how many steps to run at once, of `wanted` ones."""
        if self.pause_every_steps is None:
            return wanted
        return min(wanted, self.pause_every_steps - batches_seen % self.pause_every_steps)


@dataclass(kw_only=True)
class TrainingState:
    """What training has come to; exact in every mode.

    Attributes:
        batches_seen: Batches trained.
        examples_seen: Examples that contributed.
        num_updates: Optimizer updates that reached the model.
        epochs_done: Epochs that have ended, their validation and callbacks included.
        step_in_epoch: Batches trained of an epoch that has not ended.
        train_s: Seconds of training, of all attempts, without validation.
        epoch_s: Those of the epoch that has not ended.
        first_step_at_s: When the first step of this process was done, on the trainer's clock.
        timed_steps: Steps of this process without its first stretch.
        timed_s: Their seconds.
        metrics: Of the last epoch that has ended.
        final_metrics: After training, where weights changed once more.
        stop_reason: The signal that stopped training.
    """

    batches_seen: int = 0
    examples_seen: int = 0
    num_updates: int = 0
    epochs_done: int = 0
    step_in_epoch: int = 0
    train_s: float = 0.0
    epoch_s: float = 0.0
    first_step_at_s: float | None = None
    timed_steps: int = 0
    timed_s: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    final_metrics: dict[str, float] = field(default_factory=dict)
    stop_reason: str | None = None

    def as_position(self) -> dict[str, Any]:
        """Return what a checkpoint says of where training is; JSON can hold it."""
        return {name: getattr(self, name) for name in _POSITION}

    @staticmethod
    def from_position(position: Mapping[str, Any]) -> "TrainingState":
        """Return the state that `as_position` described."""
        return TrainingState(**{name: position[name] for name in _POSITION})


_POSITION = (
    *("batches_seen", "examples_seen", "num_updates", "epochs_done", "step_in_epoch"),
    *("train_s", "epoch_s", "metrics"),
)
