"""The ways of distributing that fault tests go through: add a row for another one."""

from dataclasses import dataclass

TWO_WORKERS = ("cluster.workers=2",)
PS = ("strategy=ps", *TWO_WORKERS, "cluster.ps=1")


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One way of distributing, and which of its tasks may be lost.

    Attributes:
        name: For test ids.
        argv: Arguments that choose it.
        cluster: Tasks by type, as TF_CONFIG lists them; empty for a mode of one process.
        chief: The task that leads.
        alone: Tasks whose loss the others survive: they are started again by themselves.
    """

    name: str
    argv: tuple[str, ...]
    cluster: tuple[tuple[str, int], ...] = ()
    chief: str = "chief-0"
    alone: frozenset[str] = frozenset()

    @property
    def strategy(self):
        """The arguments without those that TF_CONFIG stands for."""
        return [argument for argument in self.argv if argument.startswith("strategy")]

    @property
    def tasks(self):
        """All tasks, the chief first."""
        found = [f"{kind}-{index}" for kind, num in self.cluster for index in range(num)]
        return sorted(found or [self.chief], key=lambda task: task != self.chief)

    def of_type(self, kind):
        """Tasks of one type, without the chief."""
        return [task for task in self.tasks if task.startswith(kind) and task != self.chief]

    def __str__(self):
        return self.name


MODES = {
    mode.name: mode
    for mode in (
        Mode(name="single", argv=("strategy=single",)),
        Mode(name="mirrored", argv=("strategy=mirrored", "strategy.devices=2")),
        Mode(
            name="multiworker",
            argv=("strategy=multiworker", *TWO_WORKERS),
            cluster=(("worker", 2),),
            chief="worker-0",
        ),
        Mode(
            name="ps",
            argv=PS,
            cluster=(("chief", 1), ("worker", 2), ("ps", 1)),
            alone=frozenset({"worker-0", "worker-1"}),
        ),
        Mode(
            name="ps_sync",
            argv=(*PS, "strategy.update=sync"),
            cluster=(("chief", 1), ("worker", 2), ("ps", 1)),
            alone=frozenset({"worker-0", "worker-1"}),
        ),
        Mode(
            name="ps_between",
            argv=(*PS, "strategy.replication=between_graph"),
            cluster=(("worker", 2), ("ps", 1)),
            chief="worker-0",
            alone=frozenset({"worker-1"}),
        ),
        Mode(
            name="ps_between_sync",
            argv=(*PS, "strategy.replication=between_graph", "strategy.update=sync"),
            cluster=(("worker", 2), ("ps", 1)),
            chief="worker-0",
            alone=frozenset({"worker-1"}),
        ),
    )
}
