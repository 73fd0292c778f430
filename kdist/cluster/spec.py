"""The cluster spec: every task of a run and the address it serves on."""

from collections.abc import Mapping
from dataclasses import dataclass

from kdist.cluster.task import Task, TaskType
from kdist.errors import ConfigError


@dataclass(frozen=True)
class ClusterSpec:
    """Addresses ("host:port") by task type; a task's index is its position.

    A run without a cluster has one task, whose port is 0: it serves nothing.
    """

    addresses: Mapping[TaskType, tuple[str, ...]]

    def tasks(self) -> tuple[Task, ...]:
        """Return every task: chief, workers, parameter servers, evaluators, each by index."""
        return tuple(Task(kind, index) for kind in TaskType for index in range(self.num(kind)))

    def num(self, task_type: TaskType) -> int:
        """Return how many tasks of one type there are."""
        return len(self.addresses.get(task_type, ()))

    def address(self, task: Task) -> str:
        """Return the "host:port" of a task.

        Raises:
            ConfigError: If the cluster has no such task.
        """
        if not 0 <= task.index < self.num(task.type):
            raise ConfigError(
                f"The cluster has no {task}. Received: {self.num(task.type)} {task.type} task(s)."
            )
        return self.addresses[task.type][task.index]

    @property
    def chief(self) -> Task:
        """The task that writes the run folder: chief-0, or worker-0 where no chief is listed."""
        return Task(TaskType.CHIEF if self.num(TaskType.CHIEF) else TaskType.WORKER, 0)

    @property
    def is_distributed(self) -> bool:
        """Whether training spans more than one task (evaluators do not count)."""
        return sum(self.num(kind) for kind in TaskType if kind is not TaskType.EVALUATOR) > 1

    def as_dict(self) -> dict[str, list[str]]:
        """Return the training cluster as TensorFlow wants it.

        Evaluators are left out: listed there, the coordinator would wait for them for ever.
        """
        return {
            str(kind): list(self.addresses[kind])
            for kind in TaskType
            if kind is not TaskType.EVALUATOR and self.num(kind)
        }
