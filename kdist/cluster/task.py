"""A task: one process of a run, by its type and its index within that type."""

from dataclasses import dataclass
from enum import StrEnum


class TaskType(StrEnum):
    """The four task types that TensorFlow knows."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"


@dataclass(frozen=True, order=True)
class Task:
    """One process: its type and its index within that type (from zero)."""

    type: TaskType
    index: int

    def __str__(self) -> str:
        """Return the name used in messages and log files, such as `worker-1`."""
        return f"{self.type}-{self.index}"
