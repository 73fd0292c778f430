"""Peak memory and speed of one layer of 100 million parameters, beside Keras 3 `fit`."""

import dataclasses
from pathlib import Path

from benchmarks.cases import KDIST, KERAS, Case
from benchmarks.sides import Measurement, measure

CASE = Case(workload="large", strategy="single", steps_per_execution=1)
MAX_MEMORY_RATIO = 1.15


class PeakWatch:
    """Keeps the largest peak of resident memory among a process and its descendants."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.peak_bytes = 0

    def __call__(self, pid: int) -> None:
        """Look at the process tree below `pid`."""
        for one in _tree_of(pid):
            self.peak_bytes = max(self.peak_bytes, peak_bytes(one))


def measure_memory(num_rounds: int) -> list[Measurement]:
    """Measure both sides in turn; both train and save the model."""
    measurements = []
    for _ in range(num_rounds):
        for side in (KERAS, KDIST):
            watch = PeakWatch()
            found = measure(CASE, side, watch=watch)
            peak_bytes = watch.peak_bytes if found.error is None else None
            measurements.append(dataclasses.replace(found, peak_bytes=peak_bytes))
    return measurements


def memory_ratio(measurements: list[Measurement]) -> float | None:
    """Return kdist's largest peak divided by the peer's smallest, or `None` after a failure."""
    mine = [m.peak_bytes for m in measurements if m.side == KDIST and m.peak_bytes]
    other = [m.peak_bytes for m in measurements if m.side == KERAS and m.peak_bytes]
    return max(mine) / min(other) if mine and other else None


def _tree_of(root: int) -> list[int]:
    """Return `root` and its descendants, where the system keeps /proc."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It ended meanwhile.
        children.setdefault(int(fields[1]), []).append(int(folder.name))
    tree = [root]
    for pid in tree:
        tree.extend(children.get(pid, ()))
    return tree


def peak_bytes(pid: int) -> int:
    """Return the largest resident memory that a process has had; 0 once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # A process that has ended but is not collected yet.
