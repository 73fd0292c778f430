"""What a search is asked to do, and how it gets the runs of its trials. No TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kdist.launch.request import TaskRequest
from kdist.tuning.role import LOCAL, Role

TRIALS = "trials"  # The folder of run folders in the search's.


@dataclass(frozen=True, kw_only=True)
class TrialOrder:
    """One run that a search wants.

    Attributes:
        values: Configuration keys, as in the space, to values: as if the user had typed them.
        settings: Dotted keys that the search sets by itself, such as `epochs`.
        run_dir: The run folder.
        slot: Which of `num_slots` parallel trials it is; accelerators are dealt out by it.
        num_slots: Trials that run at the same time on this machine.
    """

    values: Mapping[str, Any]
    settings: Mapping[str, Any]
    run_dir: str
    slot: int = 0
    num_slots: int = 1


class ComposeTrial(Protocol):
    """Makes the requests of a run's tasks; starts nothing. Picklable; used from one thread."""

    def __call__(self, order: TrialOrder) -> tuple[TaskRequest, ...]:
        """Return the requests of a run, as the same command line without a search would.

        Raises:
            ConfigError: If the values make no run.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class SearchRequest(TaskRequest):
    """What the search task gets.

    Attributes:
        compose: Makes the runs of trials.
        role: Whether it searches by itself, or with others.
        settings: What may not change while the search goes on, by dotted key.
        goes_on: Whether `run_dir` holds a search to continue.
    """

    compose: ComposeTrial
    role: Role = LOCAL
    settings: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = False
