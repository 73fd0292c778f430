"""What whoever runs trials asks and tells; the chief's book answers, here or over a network."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A trial to run.

    Attributes:
        trial: Its id.
        values: Keys of the space, and names of a hypermodel, to values.
        epochs: Epochs to reach.
        initial_epoch: Epochs that the trial to go on from has trained.
        parent_dirs: The run folders of that one, by execution.
        attempt: How many attempts have failed before.
        execution: The first run that is still to be done, from 1.
        run_dir: The folder of that run, where it has begun and goes on.
    """

    trial: str
    values: Mapping[str, Any]
    epochs: int
    initial_epoch: int = 0
    parent_dirs: tuple[str, ...] = ()
    attempt: int = 0
    execution: int = 1
    run_dir: str | None = None

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON holds it; `Assignment(**plain)` is the way back."""
        return asdict(self)


@dataclass(frozen=True)
class Verdict:
    """What is to become of a run after an epoch.

    Attributes:
        action: go_on; prune (the trial counts as it stands); or fail.
        reason: Why not.
    """

    action: str = "go_on"
    reason: str | None = None


GO_ON, PRUNE, FAIL = "go_on", "prune", "fail"


class Desk(Protocol):
    """Hands out trials and takes what comes of them. Called from one thread."""

    @property
    def is_over(self) -> bool:
        """Whether no further trial will come."""
        ...

    def next_trial(self, tuner: str) -> Assignment | None:
        """Return a trial to run; `None` if there is none now (see `is_over`)."""
        ...

    def started(self, trial: str, execution: int, run_dir: str, epoch: int, tuner: str) -> None:
        """Tell that a run begins, after `epoch` epochs that it already has."""
        ...

    def epoch(
        self, trial: str, execution: int, epoch: int, metrics: Mapping[str, float]
    ) -> Verdict:
        """Tell what an epoch came to; return whether the run goes on.

        Raises:
            ConfigError: If the objective is none of the metrics.
        """
        ...

    def ran(self, trial: str, execution: int) -> None:
        """Tell that a run came to its end."""
        ...

    def completed(self, trial: str, pruned: str | None = None) -> None:
        """Tell that all runs of a trial are done, or why it was stopped early."""
        ...

    def failed(self, trial: str, reason: str) -> None:
        """Tell that a trial failed; it may be handed out again."""
        ...
