"""Where the outer loop's progress goes."""

from collections.abc import Mapping
from typing import Protocol

from kdist.training.plan import TrainingPlan, TrainingState
from kdist.training.report.facts import EpochFacts, ProgressFacts


class Reporter(Protocol):
    """The chief's is a `RunReport`, the others' is silent."""

    @property
    def is_progress_due(self) -> bool:
        """Whether `progress` would show something now."""
        ...

    def progress(self, facts: ProgressFacts) -> None:
        """Show where training is."""
        ...

    def status(self, text: str) -> None:
        """Show a passing state."""
        ...

    def epoch(self, facts: EpochFacts) -> None:
        """Write and show what an epoch brought."""
        ...


class Silent:
    """Reports nothing: the reporter of tasks that are not the chief."""

    is_progress_due = False

    def progress(self, facts: ProgressFacts) -> None:
        """Show nothing."""

    def status(self, text: str) -> None:
        """Show nothing."""

    def epoch(self, facts: EpochFacts) -> None:
        """Show nothing."""


def epoch_facts(
    state: TrainingState,
    seconds: float,
    num_examples: int,
    learning_rate: float | None,
    planned_steps: int | None = None,
) -> EpochFacts:
    """Return what the epoch that has just ended, or was to have so many batches, brought."""
    return EpochFacts(
        epoch=state.epochs_done,
        global_step=state.num_updates,
        batches_seen=state.batches_seen,
        seconds=seconds,
        examples=num_examples,
        metrics=state.metrics,
        learning_rate=learning_rate,
        planned_steps=planned_steps,
    )


def progress_facts(
    state: TrainingState,
    plan: TrainingPlan,
    num_steps: int,
    metrics: Mapping[str, float],
    num_examples: int,
) -> ProgressFacts:
    """Return where training is inside an epoch of `num_steps` batches."""
    speed = state.timed_steps / state.timed_s if state.timed_s else None
    examples = num_examples / max(1, state.step_in_epoch)
    return ProgressFacts(
        epoch=state.epochs_done + 1,
        epochs=plan.epochs,
        step=state.step_in_epoch,
        steps_per_epoch=num_steps,
        metrics=metrics,
        steps_per_second=speed,
        examples_per_second=speed * examples if speed else None,
        eta_s=(plan.total_steps - state.batches_seen) / speed if speed else None,
    )
