"""Which strategy a run uses, and whether a given cluster can carry it. Decisions only."""

from dataclasses import dataclass

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import TaskType
from kdist.cluster.tf_config import Membership
from kdist.cluster.traits import StrategyTraits
from kdist.errors import ConfigError


@dataclass(frozen=True)
class Choice:
    """A strategy's name, and in a few words why it was taken."""

    name: str
    reason: str

    @property
    def line(self) -> str:
        """The one line that tells the user."""
        return f"strategy={self.name}: {self.reason}"


def choose_strategy(
    configured: str | None,
    membership: Membership | None,
    num_accelerators: int,
    *,
    num_devices: int | None = None,
) -> Choice:
    """Return the strategy to use: the configured one, else what the cluster or machine suggests.

    Args:
        configured: `strategy.name`, or `None` where the user left the choice to kdist.
        membership: What TF_CONFIG says, if it is set.
        num_accelerators: Accelerators of this machine that the run may use.
        num_devices: `strategy.devices`, where the user asked for a number.
    """
    if configured is not None:
        return Choice(configured, "as configured")
    if membership is not None:
        spec = membership.spec
        if spec.num(TaskType.PS):
            return Choice("ps", f"TF_CONFIG lists {_counts(spec)}")
        if spec.is_distributed:
            return Choice("multiworker", f"TF_CONFIG lists {_counts(spec)}")
    if (num_devices or 1) > 1:
        return Choice("mirrored", f"strategy.devices={num_devices}")
    if num_accelerators > 1 and num_devices is None:
        return Choice("mirrored", f"this machine has {num_accelerators} accelerators")
    found = "one accelerator" if num_accelerators else "no accelerator"
    return Choice("single", f"this machine has {found} and TF_CONFIG names no other task")


def check_cluster_fits(traits: StrategyTraits, membership: Membership) -> None:
    """Refuse a cluster that the strategy cannot use.

    Raises:
        ConfigError: Naming TF_CONFIG, what is missing or too many, and what would fit.
    """
    spec, task = membership.spec, membership.task
    found = f"Received: TF_CONFIG with {_counts(spec)}, strategy={traits.name}."
    if task.type is TaskType.EVALUATOR:
        raise ConfigError(
            f"TF_CONFIG: task.type evaluator is not available yet. {found} Leave this task out."
        )
    if not traits.is_clustered and spec.is_distributed:
        raise ConfigError(
            f"strategy={traits.name} trains in one process, but TF_CONFIG lists several tasks. "
            f"{found} Use strategy=multiworker or strategy=ps, or unset TF_CONFIG."
        )
    if spec.num(TaskType.PS) < traits.min_ps:
        raise ConfigError(
            f"strategy={traits.name} needs a ps task: TF_CONFIG has no cluster.ps. {found} "
            "Add one, or use strategy=multiworker."
        )
    if not traits.min_ps and spec.num(TaskType.PS):
        raise ConfigError(
            f"strategy={traits.name} has no use for parameter servers: TF_CONFIG has cluster.ps. "
            f"{found} Use strategy=ps, or leave cluster.ps out."
        )
    if traits.needs_coordinator and not spec.num(TaskType.CHIEF):
        raise ConfigError(
            f"strategy={traits.name} needs a chief that drives the workers: TF_CONFIG has no "
            f"cluster.chief. {found} Add one, or use strategy.replication=between_graph, where "
            "worker 0 is the chief."
        )
    if _num_workers(traits, spec) < traits.min_workers:
        raise ConfigError(
            f"strategy={traits.name} needs at least {traits.min_workers} worker(s): TF_CONFIG has "
            f"too few in cluster.worker. {found}"
        )


def _num_workers(traits: StrategyTraits, spec: ClusterSpec) -> int:
    return sum(
        spec.num(kind)
        for kind in (TaskType.CHIEF, TaskType.WORKER)
        if kind is TaskType.WORKER or not traits.needs_coordinator
    )


def _counts(spec: ClusterSpec) -> str:
    counts = ((kind, spec.num(kind)) for kind in TaskType)
    return ", ".join(f"{num} {kind}" for kind, num in counts if num)
