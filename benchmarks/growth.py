"""Growth with workers, simulated on one machine: steps that sleep, so that its cores are idle.

python -m benchmarks.growth

With each step asleep for a tenth of a second, what is left is what distribution costs: messages,
waiting, the coordinator. As many workers fit on the machine as their processor time takes.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.cases import PS_MODES
from benchmarks.table import render_rows
from benchmarks.task_times import Timed, time_run

SLEEP_S = 0.1
WORKERS = (1, 2, 4, 8, 16)
# Percent of so many times one worker's speed, by workers; fewer should do no worse than 8.
WANTED_PERCENT = {2: 90.0, 4: 90.0, 8: 90.0, 16: 80.0}
MAX_CHIEF_MS_PER_DISPATCH = 3.0
MAX_CHIEF_MS_PER_STEP = 0.4
MAX_SERVER_MS_PER_STEP = 1.5
WARM_STEPS_PER_WORKER, TIMED_S = 15, 6.0
# With fewer workers, what tasks do every second counts for more than what they do for a step.
COSTS_FROM_WORKERS = 8
_TIMEOUT_S = 150.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way of training: a mode of `PS_MODES`, the steps of a dispatch, and for how many workers.

    A worker that is its own client is sent no dispatches.
    """

    mode: str
    steps_per_execution: int
    workers: tuple[int, ...]

    @property
    def has_coordinator(self) -> bool:
        """Whether the chief sends dispatches, and does not train itself."""
        return "between" not in self.mode


SETTINGS = (
    Setting(mode="ps", steps_per_execution=1, workers=WORKERS),
    Setting(mode="ps", steps_per_execution=10, workers=(1, 8, 16)),
    Setting(mode="ps_between", steps_per_execution=10, workers=WORKERS),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one number of workers; times are milliseconds of processor time.

    Attributes:
        mode: As in `PS_MODES`.
        steps_per_execution: Steps of a dispatch.
        workers: How many.
        steps_per_second: Of all together; `None` after a failure.
        percent: Of as many times the speed of one worker.
        chief_ms: Of the coordinator for a step; `None` where the chief is a worker.
        dispatch_ms: Of the coordinator for a dispatch.
        worker_ms: Of a worker for one of its steps.
        server_ms: Of a server for a step of anybody.
        load: Of the machine, when it was measured.
        error: Why there is nothing to tell.
    """

    mode: str
    steps_per_execution: int
    workers: int
    steps_per_second: float | None = None
    percent: float | None = None
    chief_ms: float | None = None
    dispatch_ms: float | None = None
    worker_ms: float | None = None
    server_ms: float | None = None
    load: float = 0.0
    error: str | None = None

    @property
    def misses(self) -> tuple[str, ...]:
        """Return what was not reached."""
        if self.error is not None:
            return ("failed",)
        wanted = WANTED_PERCENT.get(self.workers, 0.0)
        is_missed = self.percent is not None and self.percent < wanted
        found = ["growth"] if is_missed else []
        if self.workers >= COSTS_FROM_WORKERS:
            found += [name for name, ms, most in self._costs() if ms is not None and ms > most]
        return tuple(found)

    def _costs(self) -> list[tuple[str, float | None, float]]:
        """Return what has a limit: name, milliseconds, limit."""
        costs = [("server", self.server_ms, MAX_SERVER_MS_PER_STEP)]
        if self.steps_per_execution == 1:
            costs.append(("dispatch", self.dispatch_ms, MAX_CHIEF_MS_PER_DISPATCH))
        else:
            costs.append(("coordinator", self.chief_ms, MAX_CHIEF_MS_PER_STEP))
        return costs


def row_of(setting: Setting, workers: int, timed: Timed, alone: float | None, load: float) -> Row:
    """Return what a run tells.

    Args:
        setting: How it trained.
        workers: How many.
        timed: The run.
        alone: Steps per second of one worker, if that is known.
        load: Of the machine.
    """
    common = {
        "mode": setting.mode,
        "steps_per_execution": setting.steps_per_execution,
        "workers": workers,
        "load": load,
    }
    speed = timed.steps_per_second
    if speed is None:
        return Row(**common, error=timed.error or "no speed")
    steps, dispatches = timed.num_steps, timed.num_steps / setting.steps_per_execution
    is_coordinated = setting.has_coordinator
    return Row(
        **common,
        steps_per_second=speed,
        percent=100.0 * speed / (workers * alone) if alone else None,
        chief_ms=timed.cpu_ms("chief", per=steps) if is_coordinated else None,
        dispatch_ms=timed.cpu_ms("chief", per=dispatches) if is_coordinated else None,
        worker_ms=timed.cpu_ms("worker", per=steps / workers),
        server_ms=timed.cpu_ms("ps", per=steps),
    )


def render(rows: Iterable[Row]) -> str:
    """Return the table."""
    head = (
        *("mode", "steps", "workers", "steps/s", "linear"),
        *("ms/dispatch", "chief ms", "worker ms", "server ms", "load", ""),
    )
    return render_rows(
        head,
        [
            (
                row.mode,
                str(row.steps_per_execution),
                str(row.workers),
                _cell(row.steps_per_second, ".1f"),
                _cell(row.percent, ".0f", "%"),
                _cell(row.dispatch_ms, ".2f"),
                _cell(row.chief_ms, ".2f"),
                _cell(row.worker_ms, ".2f"),
                _cell(row.server_ms, ".2f"),
                f"{row.load:.1f}",
                row.error or ", ".join(f"{each} MISSED" for each in row.misses) or "ok",
            )
            for row in rows
        ],
        num_left=1,
    )


def as_json(rows: Iterable[Row]) -> dict[str, Any]:
    """Return what was measured, and what was wanted."""
    return {
        "sleep_s": SLEEP_S,
        "wanted": {
            "percent": {str(workers): percent for workers, percent in WANTED_PERCENT.items()},
            "chief_ms_per_dispatch": MAX_CHIEF_MS_PER_DISPATCH,
            "chief_ms_per_step_of_ten": MAX_CHIEF_MS_PER_STEP,
            "server_ms_per_step": MAX_SERVER_MS_PER_STEP,
        },
        "rows": [{**asdict(row), "misses": list(row.misses)} for row in rows],
    }


def arguments_of(setting: Setting, workers: int) -> list[str]:
    """Return kdist's command line."""
    return [
        *("+strategy=ps", f"cluster.workers={workers}", "cluster.ps=2"),
        *PS_MODES[setting.mode],
        *sleeping_arguments(SLEEP_S),
        f"steps_per_execution={setting.steps_per_execution}",
    ]


def sleeping_arguments(sleep_s: float) -> list[str]:
    """Return the part of a command line that names a model that sleeps, and its data."""
    return [
        "model._target_=benchmarks.sleeping.build_model",
        f"++model.seconds={sleep_s}",
        "data._target_=benchmarks.kdist_targets.make_data",
        "++data.workload=dense",
        "data.batch_size=64",
    ]


def measure(settings: Sequence[Setting]) -> list[Row]:
    """Measure all settings, and say on standard error how far it is."""
    rows: list[Row] = []
    for setting in settings:
        alone: float | None = None
        for workers in setting.workers:
            load = os.getloadavg()[0]
            timed = time_run(
                arguments_of(setting, workers),
                warm_steps=WARM_STEPS_PER_WORKER * workers,
                timed_s=TIMED_S,
                timeout_s=_TIMEOUT_S,
            )
            alone = timed.steps_per_second if workers == 1 else alone
            rows.append(row_of(setting, workers, timed, alone, load))
            print(render(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; return 1 if something was not reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--workers", nargs="+", type=int, default=WORKERS)
    parser.add_argument("--modes", nargs="+", default=("ps", "ps_between"))
    parser.add_argument("--json", default="outputs/growth.json", help="where results go")
    arguments = parser.parse_args(argv)
    processes.end_with_this_process()
    settings = [
        Setting(
            mode=each.mode,
            steps_per_execution=each.steps_per_execution,
            workers=tuple(n for n in each.workers if n in arguments.workers),
        )
        for each in SETTINGS
        if each.mode in arguments.modes
    ]
    rows = measure(settings)
    print(render(rows))
    path = Path(arguments.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(rows), indent=2) + "\n", encoding="utf-8")
    print(f"Written to {path}")
    return 1 if any(row.misses for row in rows) else 0


def _cell(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


if __name__ == "__main__":
    raise SystemExit(main())
