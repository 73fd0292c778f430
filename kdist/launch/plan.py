"""What a launch consists of: tasks, addresses, devices and batch shares. Decisions only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kdist.cluster.batch_share import share_bounds
from kdist.cluster.choose import Choice, check_cluster_fits
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.tf_config import Membership, encode
from kdist.cluster.traits import StrategyTraits, traits_of
from kdist.config.schema import Config
from kdist.config.update_rules import shares_and_replicas
from kdist.errors import ConfigError

FindPorts = Callable[[str, int], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class PlannedTask:
    """One task of a launch.

    Attributes:
        task: Its type and index.
        num_devices: Devices that its replicas run on; 0 for a task that computes nothing.
        accelerators: Indices of this machine's accelerators that it may use; empty for none, and
            for a task on another machine.
        is_elsewhere: Whether it runs where kdist cannot see the devices.
        batch_rows: Examples of one batch that each of its replicas gets.
        tf_config: The TF_CONFIG that makes a process this task; `None` where there is no cluster.
    """

    task: Task
    num_devices: int = 0
    accelerators: tuple[int, ...] = ()
    is_elsewhere: bool = False
    batch_rows: tuple[int, ...] = ()
    tf_config: str | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """Everything that is decided before the first process starts.

    Attributes:
        choice: The strategy, and why it was taken.
        traits: What the strategy is like.
        spec: Every task and its address.
        tasks: The same tasks, with what each of them does; in the order of `spec.tasks()`.
        batch_size: `data.batch_size`.
        notes: What the user may not expect, a sentence each.
    """

    choice: Choice
    traits: StrategyTraits
    spec: ClusterSpec
    tasks: tuple[PlannedTask, ...]
    batch_size: int
    notes: tuple[str, ...] = ()


def build_plan(
    config: Config,
    choice: Choice,
    membership: Membership | None,
    *,
    num_accelerators: int,
    find_ports: FindPorts,
    typed_keys: tuple[str, ...] = (),
) -> LaunchPlan:
    """Return the plan of a launch on this machine, or of the cluster that TF_CONFIG describes.

    Args:
        config: The checked configuration.
        choice: The strategy to use; `config.strategy.name` may still be open.
        membership: What TF_CONFIG says, if it is set.
        num_accelerators: Accelerators of this machine.
        find_ports: Returns that many different free ports of a host; called at most once.
        typed_keys: Keys that the user typed; some deserve a note.

    Raises:
        ConfigError: If the strategy cannot run on this machine or cluster.
    """
    traits = traits_of(choice.name, config.strategy.replication, config.strategy.update)
    if config.strategy.collective == "nccl" and not num_accelerators:
        raise ConfigError(
            "strategy.collective=nccl works between NVIDIA GPUs, and this machine has none. "
            "Use strategy.collective=auto."
        )
    if membership is None:
        spec = _local_spec(config, traits, find_ports)
    else:
        check_cluster_fits(traits, membership)
        spec = membership.spec
    own_task = membership.task if membership else None
    devices = _devices_of(config, traits, spec, own_task, num_accelerators)
    _refuse_split_workers(traits, spec, own_task, devices)
    num_shares, num_replicas = _shares_and_replicas(config, traits, spec, devices)
    first_replica, tasks = 0, []
    for task in spec.tasks():
        num_devices, accelerators = devices[task]
        rows: tuple[int, ...] = ()
        if traits.batch_is_global and num_devices:
            replicas = range(first_replica, min(first_replica + num_devices, num_replicas))
            rows = tuple(
                _share(config.data.batch_size, num_shares, r % num_shares) for r in replicas
            )
            first_replica += num_devices
        elif num_devices and _computes(traits, task):
            rows = (config.data.batch_size,)
        tasks.append(
            PlannedTask(
                task=task,
                num_devices=num_devices,
                accelerators=accelerators,
                is_elsewhere=own_task is not None and task != own_task,
                batch_rows=rows,
                tf_config=encode(spec, task) if traits.is_clustered or membership else None,
            )
        )
    return LaunchPlan(
        choice=choice,
        traits=traits,
        spec=spec,
        tasks=tuple(tasks),
        batch_size=config.data.batch_size,
        notes=tuple(_notes(traits, membership, tasks, num_accelerators, typed_keys)),
    )


def _refuse_split_workers(
    traits: StrategyTraits,
    spec: ClusterSpec,
    own_task: Task | None,
    devices: Mapping[Task, tuple[int, tuple[int, ...]]],
) -> None:
    """Refuse several CPU replicas in each of several workers, which TensorFlow does not have."""
    if not (traits.is_clustered and traits.replicas_are_devices and spec.is_distributed):
        return
    for task, (num_devices, accelerators) in devices.items():
        if num_devices > 1 and not accelerators and own_task in (None, task):
            raise ConfigError(
                f"On the CPU a worker has one replica. Received: strategy={traits.name}, "
                f"strategy.devices={num_devices}, too few accelerators. Use more workers "
                "(cluster.workers) instead."
            )


def _local_spec(config: Config, traits: StrategyTraits, find_ports: FindPorts) -> ClusterSpec:
    """Return the tasks that this machine starts, with an address each."""
    host = config.cluster.host
    if not traits.is_clustered:
        return ClusterSpec({TaskType.CHIEF: (f"{host}:0",)})
    for key, least, num in (
        ("cluster.workers", traits.min_workers, config.cluster.workers),
        ("cluster.ps", traits.min_ps, config.cluster.ps),
    ):
        if num < least:
            raise ConfigError(f"strategy={traits.name} needs at least {least}: {key}={num}.")
    nums = {
        TaskType.CHIEF: 1 if traits.needs_coordinator else 0,
        TaskType.WORKER: config.cluster.workers,
        TaskType.PS: config.cluster.ps if traits.min_ps else 0,
    }
    ports = iter(find_ports(host, sum(nums.values())))
    shown_host = f"[{host}]" if ":" in host else host
    return ClusterSpec(
        {
            kind: tuple(f"{shown_host}:{next(ports)}" for _ in range(num))
            for kind, num in nums.items()
            if num
        }
    )


def _devices_of(
    config: Config,
    traits: StrategyTraits,
    spec: ClusterSpec,
    own_task: Task | None,
    num_accelerators: int,
) -> dict[Task, tuple[int, tuple[int, ...]]]:
    """Return how many devices each task computes on, and which accelerators they are.

    Tasks that start together on this machine share its accelerators; a task of TF_CONFIG has
    them to itself, and the others are taken to be like it.
    """
    computing = [task for task in spec.tasks() if _computes(traits, task)]
    num_sharing = 1 if own_task else len(computing)
    num_devices = 1
    if traits.replicas_are_devices:
        num_devices = config.strategy.devices or max(1, num_accelerators // num_sharing)
    has_enough = num_accelerators >= num_devices * num_sharing
    found: dict[Task, tuple[int, tuple[int, ...]]] = dict.fromkeys(spec.tasks(), (0, ()))
    for position, task in enumerate(computing):
        first = 0 if own_task else position * num_devices
        is_here = own_task in (None, task)
        indices = range(first, first + num_devices) if has_enough and is_here else range(0)
        found[task] = (num_devices, tuple(indices))
    return found


def _computes(traits: StrategyTraits, task: Task) -> bool:
    """Return whether replicas run in this task."""
    if traits.needs_coordinator:
        return task.type is TaskType.WORKER
    return task.type in traits.trains_on


def _shares_and_replicas(
    config: Config,
    traits: StrategyTraits,
    spec: ClusterSpec,
    devices: Mapping[Task, tuple[int, tuple[int, ...]]],
) -> tuple[int, int]:
    """Return into how many shares a batch is split, and how many replicas compute shares."""
    if traits.aggregates:
        return shares_and_replicas(config.strategy, spec.num(TaskType.WORKER))
    num = sum(num for task, (num, _) in devices.items() if task.type in traits.trains_on)
    return num, num


def _share(num_rows: int, num_replicas: int, replica: int) -> int:
    """Return how many rows of a global batch one replica counts for."""
    lo, hi, has_vote = share_bounds(num_rows, replica, num_replicas)
    return hi - lo if has_vote else 0


def _notes(
    traits: StrategyTraits,
    membership: Membership | None,
    tasks: list[PlannedTask],
    num_accelerators: int,
    typed_keys: tuple[str, ...],
) -> list[str]:
    notes = []
    computing = [task for task in tasks if task.num_devices and not task.is_elsewhere]
    if computing and not computing[0].accelerators:
        num_devices = computing[0].num_devices
        wanted = num_devices * len(computing)
        if num_accelerators:
            notes.append(
                f"The run needs {wanted} devices and this machine has {num_accelerators} "
                "accelerator(s): it runs on the CPU."
            )
        if num_devices > 1:
            notes.append(f"The CPU of each task is split into {num_devices} virtual devices.")
    for key, is_used in (
        ("cluster.workers", traits.min_workers > 0),
        ("cluster.ps", traits.min_ps > 0),
    ):
        if key in typed_keys and (membership is not None or not is_used):
            owner = "TF_CONFIG names the tasks" if membership else f"strategy={traits.name}"
            notes.append(f"{key} is not used: {owner}.")
    return notes
