"""The whole comparison: `make bench`, or `python -m benchmarks --help` for parts of it."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import memory, processes, table
from benchmarks.cases import KDIST, PEERS, STRATEGIES, plan_cases
from benchmarks.sides import Measurement, measure
from benchmarks.startup import StartUp, measure_startup

PARTS = ("speed", "memory", "startup")
SPEED_WORKLOADS = ("dense", "cnn", "lstm", "embedding")
_PACKAGES = ("kdist", "tensorflow", "keras", "tf_keras", "numpy")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; return 1 if a target was missed."""
    arguments = _parser().parse_args(argv)
    processes.end_with_this_process()
    cores = _stay_on_cores(arguments.cores)
    machine = _machine(cores)
    report: dict[str, Any] = {"machine": machine, "began": time.time()}
    if machine["load"] > 0.5:
        print(
            f"This machine is busy (load {machine['load']:.1f}): take the ratios with a grain of "
            "salt.",
            file=sys.stderr,
        )
    is_good = True
    if "speed" in arguments.parts:
        measurements = _measure_speed(arguments)
        comparisons = table.compare(measurements)
        _print("Steps per second", table.render_comparisons(comparisons))
        for line in table.failures(measurements):
            print(f"  {line}")
        report["speed"] = {
            "measurements": [table.measurement_json(m) for m in measurements],
            "comparisons": [table.comparison_json(c) for c in comparisons],
        }
        is_good &= all(c.verdict in ("ok", "peer fails") for c in comparisons)
    if "memory" in arguments.parts:
        measurements = memory.measure_memory(arguments.rounds)
        is_good &= _report_memory(measurements, report)
    if "startup" in arguments.parts:
        startups = measure_startup(max(3, arguments.rounds))
        is_good &= _report_startup(startups, report)
    path = Path(arguments.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\nWritten to {path}")
    return 0 if is_good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--workloads", nargs="+", choices=SPEED_WORKLOADS, default=SPEED_WORKLOADS)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--rounds", type=int, default=1, help="times to measure each case")
    parser.add_argument("--cores", type=int, default=2, help="cores to keep everything on")
    parser.add_argument("--json", default="outputs/benchmarks.json", help="where results go")
    return parser


def _measure_speed(arguments: argparse.Namespace) -> list[Measurement]:
    """Measure every side of a case right after one another; the order turns with each round."""
    measurements = []
    cases = plan_cases(arguments.workloads, arguments.strategies)
    for round_index in range(arguments.rounds):
        for case in cases:
            sides = (*PEERS[case.strategy], KDIST)
            for side in sides if round_index % 2 == 0 else reversed(sides):
                measurement = measure(case, side)
                measurements.append(measurement)
                speed = measurement.median
                text = measurement.error if speed is None else f"{speed:.1f} steps/s"
                print(f"{case}  {side}: {text}", file=sys.stderr, flush=True)
    return measurements


def _report_memory(measurements: list[Measurement], report: dict[str, Any]) -> bool:
    comparisons = table.compare(measurements)
    ratio = memory.memory_ratio(measurements)
    rows = [
        (m.side, f"{(m.peak_bytes or 0) / 2**20:,.0f}", f"{m.median or 0:.2f}", m.error or "")
        for m in measurements
    ]
    _print(
        "One layer of 100M parameters",
        table.render_rows(("side", "peak MiB", "steps/s", ""), rows, num_left=1),
    )
    is_small = ratio is not None and ratio <= memory.MAX_MEMORY_RATIO
    is_fast = bool(comparisons) and all(c.verdict == "ok" for c in comparisons)
    shown = "-" if ratio is None else f"{ratio:.2f}"
    print(f"memory ratio {shown} (at most {memory.MAX_MEMORY_RATIO}): {_word(is_small)}")
    for c in comparisons:
        shown = "-" if c.ratio is None else f"{c.ratio:.2f}"
        print(f"speed ratio {shown} (at least {c.target}): {_word(is_fast)}")
    report["memory"] = {
        "measurements": [table.measurement_json(m) for m in measurements],
        "memory_ratio": ratio,
        "max_memory_ratio": memory.MAX_MEMORY_RATIO,
        "speed": [table.comparison_json(c) for c in comparisons],
    }
    return is_small and is_fast


def _report_startup(startups: list[StartUp], report: dict[str, Any]) -> bool:
    rows = [
        (
            s.name,
            "-" if s.median_s is None else f"{s.median_s:.2f}",
            "-" if s.limit_s is None else f"{s.limit_s:.2f}",
            f"{s.verdict} {s.error or ''}".strip(),
        )
        for s in startups
    ]
    _print("Start-up", table.render_rows(("what", "seconds", "at most", ""), rows, num_left=1))
    report["startup"] = [
        {
            "name": s.name,
            "seconds": list(s.seconds),
            "median_s": s.median_s,
            "limit_s": s.limit_s,
            "verdict": s.verdict,
            "error": s.error,
        }
        for s in startups
    ]
    return all(s.verdict in ("ok", "") for s in startups)


def _stay_on_cores(count: int) -> int:
    """Keep this process and all it starts on `count` cores, where the system can; return them."""
    if not hasattr(os, "sched_setaffinity"):
        return os.cpu_count() or 1
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    return len(os.sched_getaffinity(0))


def _machine(cores: int) -> dict[str, Any]:
    return {
        "cores": cores,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        "processor": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
    }


def _print(title: str, text: str) -> None:
    print(f"\n{title}\n{text}", flush=True)


def _word(is_good: bool) -> str:
    return "ok" if is_good else "MISSED"
