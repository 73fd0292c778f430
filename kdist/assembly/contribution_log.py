"""Who contributed which step on parameter servers: samples while training, counts at the end."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

from kdist.assembly.run_parts import Parts, Place
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import TaskType
from kdist.cluster.traits import ASYNC, StrategyTraits
from kdist.distribute.servers.contributions import ContributionFacts
from kdist.errors import KdistError
from kdist.records.events import EventLog
from kdist.training.report.facts import ContributionSample

# How far samples lie apart, and how many contributions, one after the other, each of them shows.
EVERY_S = 1.0
SAMPLE_SIZE = 8


class Counted(Protocol):
    """What counts contributions."""

    def read(self) -> ContributionFacts:
        """Return what has been counted so far."""
        ...


class SampleReport(Protocol):
    """Where samples are shown."""

    def contributions(self, sample: ContributionSample) -> None:
        """Show which workers contributed some updates."""
        ...


class ContributionLog:
    """Reads the first server's counts between stretches of steps. Used by the chief."""

    def __init__(
        self,
        contributions: Counted | None,
        traits: StrategyTraits,
        spec: ClusterSpec,
        *,
        events: EventLog,
        report: SampleReport,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Hold the parts; without `contributions` nothing is read or written."""
        self._contributions = contributions
        self._traits = traits
        self._names = _worker_names(traits, spec)
        self._events = events
        self._report = report
        self._clock = clock
        self._due_s = 0.0
        self._facts: ContributionFacts | None = None

    def after_stretch(self) -> None:
        """Show the newest contributions in events.jsonl and TensorBoard, once a second at most."""
        now = self._clock()
        if self._contributions is None or now < self._due_s:
            return
        self._due_s = now + EVERY_S
        num_before = self._facts.num_taken if self._facts else 0
        self._facts = facts = self._contributions.read()
        num_new = facts.num_taken - num_before
        newest = facts.recent[-min(SAMPLE_SIZE, num_new) :] if num_new else ()
        if not newest:
            return
        sample = ContributionSample(
            updates=tuple(one.update for one in newest),
            shares=tuple(one.unit for one in newest),
            workers=tuple(one.worker for one in newest),
            staleness=tuple(one.staleness for one in newest),
        )
        with contextlib.suppress(KdistError):
            self._events.write(
                "steps_contributed",
                updates=sample.updates,
                shares=sample.shares,
                tasks=[self._name(worker) for worker in sample.workers],
                staleness=sample.staleness,
            )
        self._report.contributions(sample)

    def finish(self) -> None:
        """Read the counts once more; the servers must be there."""
        if self._contributions is not None:
            self._facts = self._contributions.read()

    def entries(self) -> dict[str, Any]:
        """Return the entries of result.json, as of the last reading."""
        if self._contributions is None:
            return {}
        facts = self._facts
        found: dict[str, Any] = {"stale_gradients_dropped": facts.num_dropped if facts else 0}
        if self._traits.update == ASYNC:
            found["staleness"] = {
                "mean": facts.mean_staleness if facts else 0.0,
                "maximum": facts.max_staleness if facts else 0,
                "histogram": {str(k): v for k, v in facts.histogram.items()} if facts else {},
            }
        if facts:
            found["contributions"] = {self._name(w): n for w, n in facts.by_worker.items()}
        return found

    def _name(self, worker: int) -> str:
        return self._names[worker] if worker < len(self._names) else f"worker-{worker}"


def contribution_log(
    place: Place, parts: Parts, events: EventLog, report: SampleReport
) -> ContributionLog:
    """Return the log of a run; it does nothing where there are no parameter servers."""
    tallies = getattr(parts.engine.loop.store, "tallies", None)
    return ContributionLog(
        tallies.contributions if tallies is not None else None,
        place.traits,
        place.request.spec,
        events=events,
        report=report,
    )


def _worker_names(traits: StrategyTraits, spec: ClusterSpec) -> list[str]:
    if traits.needs_coordinator:
        return [str(task) for task in spec.tasks() if task.type is TaskType.WORKER]
    return [str(task) for task in spec.tasks() if task.type in traits.trains_on]
