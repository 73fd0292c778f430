"""One slow worker of four, simulated: what it costs asynchronous and synchronous training.

python -m benchmarks.slow_worker

Every step sleeps for a tenth of a second, and those of the slow worker for half a second.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.cases import PS_MODES
from benchmarks.growth import SLEEP_S, sleeping_arguments
from benchmarks.table import render_rows
from benchmarks.task_times import Timed, time_run

SLOW_S = 5 * SLEEP_S
TIMED_S = 6.0
_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way of training.

    Attributes:
        name: What the table calls it.
        mode: As in `PS_MODES`.
        workers: How many.
        has_slow: Whether the last one is slow.
        num_shares: Shares of a synchronous update; `None` for all workers'.
        beside: The setting that its speed is compared with.
        wanted: The part of that setting's speed to reach; `None` if it is only shown.
    """

    name: str
    mode: str
    workers: int
    has_slow: bool = False
    num_shares: int | None = None
    beside: str | None = None
    wanted: float | None = None


def _settings() -> tuple[Setting, ...]:
    found = []
    for mode in ("ps", "ps_between"):
        full = f"{mode}, 4 healthy"
        found += [
            Setting(name=full, mode=mode, workers=4),
            Setting(
                name=f"{mode}, 1 of 4 slow", mode=mode, workers=4, has_slow=True,
                beside=full, wanted=0.75,
            ),
        ]  # fmt: skip
    for mode in ("ps_sync", "ps_between_sync"):
        full = f"{mode}, 3 healthy"
        slow: dict[str, Any] = {"mode": mode, "workers": 4, "has_slow": True, "beside": full}
        found += [
            Setting(name=full, mode=mode, workers=3),
            Setting(name=f"{mode}, 1 of 4 slow, 3 count", num_shares=3, wanted=0.8, **slow),
            Setting(name=f"{mode}, 1 of 4 slow, all count", **slow),
        ]
    return tuple(found)


SETTINGS = _settings()


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of a setting."""

    setting: Setting
    steps_per_second: float | None
    ratio: float | None
    load: float
    error: str | None = None

    @property
    def verdict(self) -> str:
        """Return `ok`, `MISSED`, what failed, or nothing."""
        if self.error is not None:
            return self.error
        if self.setting.wanted is None:
            return ""
        return "ok" if self.ratio is not None and self.ratio >= self.setting.wanted else "MISSED"


def row_of(setting: Setting, timed: Timed, speeds: Mapping[str, float | None], load: float) -> Row:
    """Return what a run tells beside the speeds by name of those before it."""
    speed, other = timed.steps_per_second, speeds.get(setting.beside or "")
    ratio = speed / other if speed and other else None
    error = None if speed else timed.error or "no speed"
    return Row(setting=setting, steps_per_second=speed, ratio=ratio, load=load, error=error)


def render(rows: Iterable[Row]) -> str:
    """Return the table."""
    return render_rows(
        ("what", "steps/s", "ratio", "wanted", "load", ""),
        [
            (
                row.setting.name,
                "-" if row.steps_per_second is None else f"{row.steps_per_second:.1f}",
                "-" if row.ratio is None else f"{row.ratio:.2f}",
                "-" if row.setting.wanted is None else f"{row.setting.wanted:.2f}",
                f"{row.load:.1f}",
                row.verdict,
            )
            for row in rows
        ],
        num_left=1,
    )


def arguments_of(setting: Setting, slow_file: str) -> list[str]:
    """Return kdist's command line; `slow_file` will hold the id of the slow process."""
    shares = (
        []
        if setting.num_shares is None
        else [
            f"strategy.replicas_to_aggregate={setting.num_shares}",
            f"strategy.total_replicas={setting.workers}",
        ]
    )
    return [
        *("+strategy=ps", f"cluster.workers={setting.workers}", "cluster.ps=2"),
        *PS_MODES[setting.mode],
        *shares,
        *sleeping_arguments(SLEEP_S),
        f"++model.slow_seconds={SLOW_S}",
        f"++model.slow_file={slow_file}",
    ]


def measure(settings: Sequence[Setting]) -> list[Row]:
    """Measure all settings, and say on standard error how far it is."""
    rows: list[Row] = []
    speeds: dict[str, float | None] = {}
    for setting in settings:
        load = os.getloadavg()[0]
        timed = _time(setting)
        speeds[setting.name] = timed.steps_per_second
        rows.append(row_of(setting, timed, speeds, load))
        print(render(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    return rows


def _time(setting: Setting) -> Timed:
    with tempfile.TemporaryDirectory(prefix="kdist-benchmark-") as folder:
        slow_file = Path(folder) / "slow"
        slow_file.write_text("", encoding="utf-8")

        def slow_down(pids: Mapping[str, int]) -> None:
            if setting.has_slow:
                pid = pids[f"worker-{setting.workers - 1}"]
                slow_file.write_text(str(pid), encoding="utf-8")

        is_sync = "sync" in setting.mode
        return time_run(
            arguments_of(setting, str(slow_file)),
            warm_steps=15 if is_sync else 15 * setting.workers,
            timed_s=TIMED_S,
            timeout_s=_TIMEOUT_S,
            on_tasks=slow_down,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; return 1 if something was not reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_worker", description=__doc__)
    modes = tuple(dict.fromkeys(setting.mode for setting in SETTINGS))
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes)
    parser.add_argument("--json", default="outputs/slow_worker.json", help="where results go")
    arguments = parser.parse_args(argv)
    processes.end_with_this_process()
    rows = measure([each for each in SETTINGS if each.mode in arguments.modes])
    print(render(rows))
    report = [{**asdict(row), "verdict": row.verdict} for row in rows]
    path = Path(arguments.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"sleep_s": SLEEP_S, "rows": report}, indent=2), encoding="utf-8")
    print(f"Written to {path}")
    return 0 if all(row.verdict in ("ok", "") for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
