"""What differs between strategies, as a table: the rest of kdist asks here, never by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from kdist.cluster.task import TaskType
from kdist.errors import ConfigError

NO_REPLICATION = "none"
IN_GRAPH = "in_graph"
BETWEEN_GRAPH = "between_graph"
SYNC = "sync"
ASYNC = "async"


@dataclass(frozen=True, kw_only=True)
class StrategyTraits:
    """What the rest of kdist may ask about a way of distributing.

    Attributes:
        name: The value of `strategy.name`.
        replication: "none", "in_graph" (one client drives all replicas) or "between_graph" (each
            worker is a client of its own).
        update: "sync" (replicas wait for each other) or "async" (they do not).
        needs_coordinator: Whether the chief drives the workers, step by step.
        has_followers: Whether tasks that train, but for the chief, run no outer loop of their own:
            they take steps that the chief opens, and may come and go.
        trains_on: Task types that run the training loop.
        hosts: Task types that only lend a TensorFlow server.
        restarts_alone: Task types that are started again by themselves after a loss, while the
            others go on; the loss of any other task restarts all from the last checkpoint.
        min_workers: Fewest workers, a chief that trains included.
        min_ps: Fewest parameter servers.
        batch_is_global: Whether `data.batch_size` is split among all replicas; where it is not,
            every worker's batch has that many examples and is an update of its own.
        replicas_are_devices: Whether each replica is a device of its task (`strategy.devices`).
    """

    name: str
    replication: str
    update: str
    needs_coordinator: bool = False
    has_followers: bool = False
    trains_on: frozenset[TaskType] = frozenset({TaskType.CHIEF})
    hosts: frozenset[TaskType] = frozenset()
    restarts_alone: frozenset[TaskType] = frozenset()
    min_workers: int = 0
    min_ps: int = 0
    batch_is_global: bool = True
    replicas_are_devices: bool = False

    @property
    def is_clustered(self) -> bool:
        """Whether it needs tasks that talk to each other."""
        return bool(self.min_workers or self.min_ps)

    @property
    def has_servers(self) -> bool:
        """Whether parameters live on parameter servers."""
        return self.min_ps > 0

    @property
    def aggregates(self) -> bool:
        """Whether servers gather shares of a global batch from several workers for an update."""
        return self.has_servers and self.update == SYNC

    @property
    def has_peers(self) -> bool:
        """Whether every task that trains runs the outer loop, and all decide alike."""
        return len(self.trains_on) > 1 and not self.has_followers

    @property
    def label(self) -> str:
        """One line for people, such as `ps (in-graph, async)`."""
        how = f"{self.replication.replace('_', '-')}, {self.update}"
        return self.name if self.replication == NO_REPLICATION else f"{self.name} ({how})"


TRAITS: Mapping[tuple[str, str, str], StrategyTraits] = {
    (traits.name, traits.replication, traits.update): traits
    for traits in (
        StrategyTraits(name="single", replication=NO_REPLICATION, update=SYNC),
        StrategyTraits(
            name="mirrored", replication=IN_GRAPH, update=SYNC, replicas_are_devices=True
        ),
        StrategyTraits(
            name="multiworker",
            replication=BETWEEN_GRAPH,
            update=SYNC,
            trains_on=frozenset({TaskType.CHIEF, TaskType.WORKER}),
            min_workers=1,
            replicas_are_devices=True,
        ),
        StrategyTraits(
            name="ps",
            replication=IN_GRAPH,
            update=ASYNC,
            needs_coordinator=True,
            hosts=frozenset({TaskType.WORKER, TaskType.PS}),
            restarts_alone=frozenset({TaskType.WORKER}),
            min_workers=1,
            min_ps=1,
            batch_is_global=False,
        ),
        StrategyTraits(
            name="ps",
            replication=IN_GRAPH,
            update=SYNC,
            needs_coordinator=True,
            hosts=frozenset({TaskType.WORKER, TaskType.PS}),
            restarts_alone=frozenset({TaskType.WORKER}),
            min_workers=1,
            min_ps=1,
        ),
        StrategyTraits(
            name="ps",
            replication=BETWEEN_GRAPH,
            update=ASYNC,
            has_followers=True,
            trains_on=frozenset({TaskType.CHIEF, TaskType.WORKER}),
            hosts=frozenset({TaskType.PS}),
            restarts_alone=frozenset({TaskType.WORKER}),
            min_workers=1,
            min_ps=1,
            batch_is_global=False,
        ),
        StrategyTraits(
            name="ps",
            replication=BETWEEN_GRAPH,
            update=SYNC,
            has_followers=True,
            trains_on=frozenset({TaskType.CHIEF, TaskType.WORKER}),
            hosts=frozenset({TaskType.PS}),
            restarts_alone=frozenset({TaskType.WORKER}),
            min_workers=1,
            min_ps=1,
        ),
    )
}

STRATEGY_NAMES = tuple(dict.fromkeys(name for name, _, _ in TRAITS))
_REPLICATIONS = (NO_REPLICATION, IN_GRAPH, BETWEEN_GRAPH)
_UPDATES = (SYNC, ASYNC)


def traits_of(
    name: str, replication: str | None = None, update: str | None = None
) -> StrategyTraits:
    """Return the traits of a mode; `None` stands for the strategy's own way.

    Raises:
        ConfigError: If a value is unknown, or the combination does not exist (yet).
    """
    for key, value, known in (
        ("strategy.name", name, STRATEGY_NAMES),
        ("strategy.replication", replication, _REPLICATIONS),
        ("strategy.update", update, _UPDATES),
    ):
        if value is not None and value not in known:
            raise ConfigError(f"{key} must be one of {', '.join(known)}. Received: {value}.")
    modes = [traits for traits in TRAITS.values() if traits.name == name]
    for traits in modes:
        if replication in (None, traits.replication) and update in (None, traits.update):
            return traits
    available = " or ".join(f"{mode.replication} with {mode.update} updates" for mode in modes)
    raise ConfigError(
        f"strategy={name} is not available yet in this form. Received: strategy.replication="
        f"{replication or modes[0].replication}, strategy.update={update or modes[0].update}. "
        f"Available: {available}."
    )
