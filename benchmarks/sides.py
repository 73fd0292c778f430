"""Measures one case on one side: kdist through its command line, peers through `fit`."""

import csv
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import cases, peer, processes
from benchmarks.cases import KDIST, Case
from benchmarks.workloads import WORKLOADS

NUM_EPOCHS = 3  # The first one, with tracing, is not counted.
_TIMEOUT_S = 240.0


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One side's speed in one case.

    Attributes:
        case: What was measured.
        side: `kdist`, `keras` or `tf_keras`.
        steps_per_second: Of each timed epoch; empty after a failure.
        error: Why there is no speed.
        peak_bytes: Of the largest process, where memory was watched.
        final_loss: To see that the same work was done.
    """

    case: Case
    side: str
    steps_per_second: tuple[float, ...] = ()
    error: str | None = None
    peak_bytes: int | None = None
    final_loss: float | None = None

    @property
    def median(self) -> float | None:
        """Return the median speed, or `None` after a failure."""
        return statistics.median(self.steps_per_second) if self.steps_per_second else None


def measure(case: Case, side: str, *, watch: Callable[[int], None] | None = None) -> Measurement:
    """Measure one case on one side, in fresh processes.

    Args:
        case: What to measure.
        side: `kdist`, `keras` or `tf_keras`.
        watch: Called ten times a second with the id of the process that was started.
    """
    if side == KDIST:
        return _measure_kdist(case, watch)
    return _measure_peer(case, side, watch)


def kdist_arguments(case: Case, run_dir: str) -> list[str]:
    """Return kdist's command line for a case."""
    sizes = {
        "single": [],
        "mirrored": [f"strategy.devices={cases.NUM_DEVICES}"],
        "multiworker": [f"cluster.workers={cases.NUM_WORKERS}"],
        "ps": [f"cluster.workers={cases.NUM_WORKERS}", f"cluster.ps={cases.NUM_PS}"],
    }
    return [
        f"+strategy={case.name}",
        *sizes[case.name],
        *cases.PS_MODES.get(case.strategy, ()),
        "model._target_=benchmarks.kdist_targets.build_model",
        f"++model.workload={case.workload}",
        "data._target_=benchmarks.kdist_targets.make_data",
        f"++data.workload={case.workload}",
        f"data.batch_size={case.batch_size}",
        f"epochs={NUM_EPOCHS}",
        f"steps_per_epoch={case.num_steps(KDIST)}",
        f"steps_per_execution={case.steps_per_execution}",
        f"hydra.run.dir={run_dir}",
        *WORKLOADS[case.workload].kdist_arguments,
    ]


def _measure_kdist(case: Case, watch: Callable[[int], None] | None) -> Measurement:
    with tempfile.TemporaryDirectory(prefix="kdist-benchmark-") as folder:
        run_dir = Path(folder) / "run"
        argv = processes.python("-m", "kdist", *kdist_arguments(case, str(run_dir)))
        finished = processes.run(argv, timeout_s=_TIMEOUT_S, watch=watch)
        if finished.exit_code != 0:
            return Measurement(case=case, side=KDIST, error=finished.last_line)
        result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
        with (run_dir / "metrics.csv").open(encoding="utf-8", newline="") as file:
            seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
    return Measurement(
        case=case,
        side=KDIST,
        steps_per_second=tuple(case.num_steps(KDIST) / s for s in seconds[1:]),
        final_loss=result["metrics"]["loss"],
    )


def _measure_peer(case: Case, side: str, watch: Callable[[int], None] | None) -> Measurement:
    with tempfile.TemporaryDirectory(prefix="kdist-benchmark-") as folder:
        argv = processes.python(
            "-m",
            "benchmarks.peer",
            *(side, case.name, case.workload),
            *("--steps", str(case.num_steps(side)), "--batch-size", str(case.batch_size)),
            *("--steps-per-execution", str(case.steps_per_execution)),
            *("--epochs", str(NUM_EPOCHS), "--devices", str(cases.NUM_DEVICES)),
            # kdist's run writes its model too; it matters where memory is watched.
            *(("--save", str(Path(folder) / "model.keras")) if watch else ()),
        )
        if case.name == "multiworker":
            cluster, reporter = {"worker": cases.NUM_WORKERS}, "worker-0"
        elif case.name == "ps":
            cluster = {"chief": 1, "worker": cases.NUM_WORKERS, "ps": cases.NUM_PS}
            reporter = "chief-0"
        else:
            cluster, reporter = {}, ""
        finished = (
            processes.run_cluster(argv, cluster, reporter=reporter, timeout_s=_TIMEOUT_S)
            if cluster
            else processes.run(argv, timeout_s=_TIMEOUT_S, watch=watch)
        )
    lines = [line for line in finished.output.splitlines() if line.startswith(peer.MARK)]
    if finished.exit_code != 0 or not lines:
        return Measurement(case=case, side=side, error=finished.last_line)
    result = json.loads(lines[-1].removeprefix(peer.MARK))
    return Measurement(
        case=case,
        side=side,
        steps_per_second=tuple(case.num_steps(side) / s for s in result["seconds"][1:]),
        final_loss=result["loss"][-1],
    )
