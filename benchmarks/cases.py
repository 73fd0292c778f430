"""What is measured: workloads, strategies, peers, and the ratios to reach."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.workloads import WORKLOADS

KDIST, KERAS, TF_KERAS = "kdist", "keras", "tf_keras"
# What kdist's command line is given for each of its four ways on parameter servers.
PS_MODES: Mapping[str, tuple[str, ...]] = {
    "ps": (),
    "ps_between": ("strategy.replication=between_graph",),
    "ps_sync": ("strategy.update=sync",),
    "ps_between_sync": ("strategy.replication=between_graph", "strategy.update=sync"),
}
STRATEGIES = ("single", "mirrored", "multiworker", *PS_MODES)
STEPS_PER_EXECUTION = (1, 10)
NUM_WORKERS, NUM_PS, NUM_DEVICES = 2, 2, 2
BATCH_SIZE_PER_WORKER = 64

# Which peers can train under which strategy at all (Keras 3 with steps_per_execution > 1 under
# `mirrored` fails; that is measured, and reported as a failure).
PEERS: Mapping[str, tuple[str, ...]] = {
    "single": (KERAS, TF_KERAS),
    "mirrored": (TF_KERAS, KERAS),
    "multiworker": (TF_KERAS,),
    **dict.fromkeys(PS_MODES, (TF_KERAS,)),  # Its one way: in-graph, asynchronous.
}
# Steps of one timed epoch of the dense model: about five seconds. Shorter ones scatter.
_STEPS = {"single": 5000, "mirrored": 2500, "multiworker": 1500, **dict.fromkeys(PS_MODES, 2000)}
_PS_PEER_STEPS = 400  # `tf_keras` takes about five seconds for these.
# The ratio to reach against a peer; every other pair has to reach 1.0.
_DENSE_TARGETS = {
    ("single", KERAS): 1.3,
    ("mirrored", TF_KERAS): 1.7,
    ("multiworker", TF_KERAS): 2.2,
    ("ps", TF_KERAS): 6.0,
    ("ps_between", TF_KERAS): 6.0,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to measure on every side."""

    workload: str
    strategy: str
    steps_per_execution: int

    def num_steps(self, side: str) -> int:
        """Return the steps of one timed epoch, a multiple of `steps_per_execution` ten."""
        is_slow = self.strategy in PS_MODES and side != KDIST
        steps = _PS_PEER_STEPS if is_slow else _STEPS[self.strategy]
        return max(10, round(steps * WORKLOADS[self.workload].step_share / 10) * 10)

    @property
    def batch_size(self) -> int:
        """`data.batch_size`: examples a step; mostly 64 for each worker that takes part in it."""
        own = WORKLOADS[self.workload].batch_size or BATCH_SIZE_PER_WORKER
        return own * (1 if self.strategy in ("single", "ps", "ps_between") else NUM_WORKERS)

    @property
    def name(self) -> str:
        """Return what kdist, and peers, call the strategy."""
        return "ps" if self.strategy in PS_MODES else self.strategy

    def __str__(self) -> str:
        """Return a name for messages."""
        return f"{self.workload} {self.strategy} steps_per_execution={self.steps_per_execution}"


def plan_cases(workloads: Iterable[str], strategies: Sequence[str]) -> tuple[Case, ...]:
    """Return the cases in the order of measuring."""
    return tuple(
        Case(workload=workload, strategy=strategy, steps_per_execution=steps)
        for workload in workloads
        for strategy in strategies
        for steps in STEPS_PER_EXECUTION
    )


def target_ratio(workload: str, strategy: str, peer: str) -> float:
    """Return what kdist's speed divided by the peer's should at least be."""
    if workload == "large":
        return 0.95
    if workload.startswith("wide_deep"):
        return 2.0
    if workload == "dense":
        return _DENSE_TARGETS.get((strategy, peer), 1.0)
    return 1.0
