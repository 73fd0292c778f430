"""Where the outer loop's progress goes."""

from typing import Protocol

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
