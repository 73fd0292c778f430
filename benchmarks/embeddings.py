"""Embedding tables on parameter servers: beside tf_keras, and what a step costs as they grow.

python -m benchmarks.embeddings
"""

import argparse
import csv
import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks import processes, table
from benchmarks.cases import KDIST, TF_KERAS, Case
from benchmarks.memory import peak_bytes
from benchmarks.sides import NUM_EPOCHS, Measurement, kdist_arguments, measure
from kdist.records.events import read_events

COMPARED, SMALL, BIG = "wide_deep_1m", "wide_deep_100k", "wide_deep_10m"
MAX_STEP_RATIO = 1.3
MAX_WORKER_MEMORY_RATIO = 1.1
_TIMEOUT_S = 900.0


@dataclass(kw_only=True)
class Growth:
    """Steps per second of each timed epoch, and the peak memory of each task, of one size."""

    workload: str
    steps_per_second: tuple[float, ...] = ()
    peaks: dict[str, int] = field(default_factory=dict)

    @property
    def worker_peak(self) -> int:
        """Return the largest peak among the workers."""
        return max(b for task, b in self.peaks.items() if task.startswith("worker"))


class _UntilTimed:
    """Looks at a run's tasks, and ends it after its last epoch: writing the model is not timed."""

    def __init__(self, run_dir: Path):
        """Watch the run that writes into `run_dir`."""
        self._run_dir = run_dir
        self.peaks: dict[str, int] = {}

    def __call__(self, pid: int) -> None:
        """Take the tasks' peaks; end the run once all epochs are in metrics.csv."""
        if not (self._run_dir / "events.jsonl").exists():
            return
        for event in read_events(self._run_dir / "events.jsonl"):
            if event["event"] == "task_started":
                task, now = event["task"], peak_bytes(event["pid"])
                self.peaks[task] = max(now, self.peaks.get(task, 0))
        if len(_epoch_seconds(self._run_dir)) >= NUM_EPOCHS:
            os.kill(pid, signal.SIGKILL)  # The tasks end with their launcher.


def measure_growth(workload: str) -> Growth:
    """Measure one size of table under kdist."""
    case = Case(workload=workload, strategy="ps", steps_per_execution=10)
    with tempfile.TemporaryDirectory(prefix="kdist-benchmark-") as folder:
        run_dir = Path(folder) / "run"
        watch = _UntilTimed(run_dir)
        argv = processes.python("-m", "kdist", *kdist_arguments(case, str(run_dir)))
        finished = processes.run(argv, timeout_s=_TIMEOUT_S, watch=watch)
        seconds = _epoch_seconds(run_dir)
        if len(seconds) < NUM_EPOCHS:
            raise RuntimeError(f"{workload} was not trained: {finished.last_line}")
        speeds = tuple(case.num_steps(KDIST) / s for s in seconds[1:])
        return Growth(workload=workload, steps_per_second=speeds, peaks=watch.peaks)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; return 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="times to measure each case")
    parser.add_argument("--parts", nargs="+", default=("speed", "growth"))
    arguments = parser.parse_args(argv)
    processes.end_with_this_process()
    is_good = True
    if "speed" in arguments.parts:
        is_good &= _compare(arguments.rounds)
    if "growth" in arguments.parts:
        is_good &= _grow(arguments.rounds)
    return 0 if is_good else 1


def _compare(rounds: int) -> bool:
    measurements: list[Measurement] = []
    for _ in range(rounds):
        for steps in (1, 10):
            for side in (TF_KERAS, KDIST):
                case = Case(workload=COMPARED, strategy="ps", steps_per_execution=steps)
                measurements.append(measure(case, side))
    comparisons = table.compare(measurements)
    print(table.render_comparisons(comparisons))
    for line in table.failures(measurements):
        print(f"  {line}")
    return all(c.verdict == "ok" for c in comparisons)


def _grow(rounds: int) -> bool:
    found = {SMALL: [], BIG: []}
    for _ in range(rounds):
        for workload, growths in found.items():
            growths.append(measure_growth(workload))
    speeds = {w: median(s for g in gs for s in g.steps_per_second) for w, gs in found.items()}
    peaks = {w: max(g.worker_peak for g in gs) for w, gs in found.items()}
    for workload, growths in found.items():
        shown = ", ".join(f"{t} {b / 2**20:,.0f}" for t, b in sorted(growths[-1].peaks.items()))
        print(f"{workload}: {speeds[workload]:.1f} steps/s; peak MiB: {shown}")
    time_ratio, memory_ratio = speeds[SMALL] / speeds[BIG], peaks[BIG] / peaks[SMALL]
    print(f"step time 10M / 100k rows: {time_ratio:.2f} (at most {MAX_STEP_RATIO})")
    print(f"worker memory 10M / 100k rows: {memory_ratio:.2f} (at most {MAX_WORKER_MEMORY_RATIO})")
    return time_ratio <= MAX_STEP_RATIO and memory_ratio <= MAX_WORKER_MEMORY_RATIO


def _epoch_seconds(run_dir: Path) -> list[float]:
    path = run_dir / "metrics.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [float(row["seconds"]) for row in csv.DictReader(file) if row["seconds"]]


if __name__ == "__main__":
    raise SystemExit(main())
