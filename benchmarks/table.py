"""Ratios between kdist and its peers, as a table and as JSON. Pure functions."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import KDIST, target_ratio
from benchmarks.sides import Measurement


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One side's speed in one workload and strategy, over all rounds.

    Attributes:
        by_steps: Median steps per second by `steps_per_execution`; `None` where it failed.
        errors: The failures by `steps_per_execution`.
    """

    by_steps: Mapping[int, float | None]
    errors: Mapping[int, str]

    @property
    def best(self) -> float | None:
        """Return the speed at the better `steps_per_execution`."""
        return max((speed for speed in self.by_steps.values() if speed is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """kdist beside one peer, each at its better `steps_per_execution`."""

    workload: str
    strategy: str
    peer: str
    kdist: Speed
    other: Speed
    target: float

    @property
    def ratio(self) -> float | None:
        """Return kdist's speed divided by the peer's; `None` if either side has none."""
        if self.kdist.best is None or self.other.best is None:
            return None
        return self.kdist.best / self.other.best

    @property
    def verdict(self) -> str:
        """Return `ok`, `BELOW`, or which side failed."""
        if self.kdist.best is None:
            return "kdist failed"
        if self.ratio is None:
            return "peer fails"
        return "ok" if self.ratio >= self.target else "BELOW"


def compare(measurements: Iterable[Measurement]) -> tuple[Comparison, ...]:
    """Pair kdist with each peer that was measured, in the order of measuring."""
    groups: dict[tuple[str, str], dict[str, list[Measurement]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for measurement in measurements:
        case = measurement.case
        groups[case.workload, case.strategy][measurement.side].append(measurement)
    return tuple(
        Comparison(
            workload=workload,
            strategy=strategy,
            peer=peer,
            kdist=_speed(sides[KDIST]),
            other=_speed(found),
            target=target_ratio(workload, strategy, peer),
        )
        for (workload, strategy), sides in groups.items()
        for peer, found in sides.items()
        if peer != KDIST and KDIST in sides
    )


def render_comparisons(comparisons: Iterable[Comparison]) -> str:
    """Return the table of speeds and ratios."""
    rows = [
        (
            c.workload,
            c.strategy,
            c.peer,
            _cell(c.other, 1),
            _cell(c.other, 10),
            _cell(c.kdist, 1),
            _cell(c.kdist, 10),
            "-" if c.ratio is None else f"{c.ratio:.2f}",
            f"{c.target:.2f}",
            c.verdict,
        )
        for c in comparisons
    ]
    head = (
        *("model", "strategy", "peer", "peer x1", "peer x10", "kdist x1", "kdist x10"),
        *("ratio", "target", ""),
    )
    return render_rows(head, rows, num_left=3)


def render_rows(head: Sequence[str], rows: Sequence[Sequence[str]], *, num_left: int) -> str:
    """Return a table in plain text; the first `num_left` columns and the last one align left."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [
            f"{cell:<{width}}" if i < num_left or i == len(head) - 1 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def failures(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """Return one line a measurement that failed, each text once."""
    lines = (f"{m.side}, {m.case}: {m.error}" for m in measurements if m.error is not None)
    return tuple(dict.fromkeys(lines))


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON takes it."""
    return {
        "workload": comparison.workload,
        "strategy": comparison.strategy,
        "peer": comparison.peer,
        "kdist_steps_per_second": _json_speed(comparison.kdist),
        "peer_steps_per_second": _json_speed(comparison.other),
        "ratio": comparison.ratio,
        "target": comparison.target,
        "verdict": comparison.verdict,
    }


def measurement_json(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement as JSON takes it."""
    case = measurement.case
    return {
        "workload": case.workload,
        "strategy": case.strategy,
        "steps_per_execution": case.steps_per_execution,
        "batch_size": case.batch_size,
        "steps_per_epoch": case.num_steps(measurement.side),
        "side": measurement.side,
        "steps_per_second": list(measurement.steps_per_second),
        "peak_bytes": measurement.peak_bytes,
        "final_loss": measurement.final_loss,
        "error": measurement.error,
    }


def _speed(measurements: Sequence[Measurement]) -> Speed:
    samples: dict[int, list[float]] = defaultdict(list)
    errors = {}
    for measurement in measurements:
        steps = measurement.case.steps_per_execution
        samples[steps].extend(measurement.steps_per_second)
        if measurement.error is not None:
            errors[steps] = measurement.error
    by_steps = {k: statistics.median(v) if v else None for k, v in samples.items()}
    return Speed(by_steps=by_steps, errors=errors)


def _json_speed(speed: Speed) -> dict[str, float | None]:
    return {str(steps): value for steps, value in speed.by_steps.items()}


def _cell(speed: Speed, steps: int) -> str:
    if steps not in speed.by_steps:
        return "-"
    value = speed.by_steps[steps]
    return "fails" if value is None else f"{value:.1f}"
