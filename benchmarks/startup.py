"""How long kdist takes to answer, and to reach the first step with parameter servers."""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import processes

_TIMEOUT_S = 120.0
FIRST_STEP_OVER_IMPORT = 2.5


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """One start-up time.

    Attributes:
        name: What was timed.
        seconds: Of each round; empty after a failure.
        limit_s: What it should stay below.
        error: Why there is no time.
    """

    name: str
    seconds: tuple[float, ...]
    limit_s: float | None
    error: str | None = None

    @property
    def median_s(self) -> float | None:
        """Return the median, or `None` after a failure."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def verdict(self) -> str:
        """Return `ok`, `ABOVE`, `failed`, or nothing where there is no limit."""
        if self.median_s is None:
            return "failed"
        if self.limit_s is None:
            return ""
        return "ok" if self.median_s <= self.limit_s else "ABOVE"


def measure_startup(num_rounds: int) -> list[StartUp]:
    """Time all four in turn, after one round that only warms the disk cache."""
    actions: dict[str, Callable[[], float]] = {
        "import tensorflow, keras": _import_s,
        "python -m kdist --help": lambda: _answer_s("--help", exit_code=0),
        "a configuration error": lambda: _answer_s("data.batch_size=0", exit_code=2),
        "first step of +strategy=ps": _first_step_s,
    }
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    errors: dict[str, str] = {}
    for round_index in range(num_rounds + 1):
        for name, action in actions.items():
            try:
                taken_s = action()
            except RuntimeError as error:
                errors[name] = str(error)
                continue
            if round_index > 0:
                seconds[name].append(taken_s)
    imports = seconds["import tensorflow, keras"]
    first_step_s = FIRST_STEP_OVER_IMPORT * statistics.median(imports) if imports else None
    limits_s = dict(zip(actions, (None, 1.0, 1.0, first_step_s), strict=True))
    return [
        StartUp(
            name=name,
            seconds=() if name in errors else tuple(seconds[name]),
            limit_s=limits_s[name],
            error=errors.get(name),
        )
        for name in actions
    ]


def _import_s() -> float:
    return _finished(processes.python("-c", "import tensorflow, keras"), exit_code=0).wall_s


def _answer_s(argument: str, *, exit_code: int) -> float:
    return _finished(processes.python("-m", "kdist", argument), exit_code=exit_code).wall_s


def _first_step_s() -> float:
    with tempfile.TemporaryDirectory(prefix="kdist-benchmark-") as folder:
        stamp = Path(folder) / "stamp"
        argv = processes.python(
            *("-m", "kdist", "+strategy=ps", "cluster.workers=2", "cluster.ps=2", "max_steps=4"),
            "++callbacks.stamp._target_=benchmarks.kdist_targets.FirstBatchStamp",
            f"++callbacks.stamp.path={stamp}",
            f"hydra.run.dir={folder}/run",
        )
        began_s = time.time()
        _finished(argv, exit_code=0)
        return float(stamp.read_text(encoding="utf-8")) - began_s


def _finished(argv: tuple[str, ...], *, exit_code: int) -> processes.Finished:
    finished = processes.run(argv, timeout_s=_TIMEOUT_S)
    if finished.exit_code != exit_code:
        raise RuntimeError(f"exit code {finished.exit_code}: {finished.last_line}")
    return finished
