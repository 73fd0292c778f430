"""What a search knows: its trials, folded out of the entries of its journal. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kdist.errors import ConfigError
from kdist.tuning.objective import Objective
from kdist.tuning.work_time import WorkTime

RUNNING = "running"
COMPLETED = "completed"
PRUNED = "pruned"
FAILED = "failed"
SCORED = (COMPLETED, PRUNED)

Metrics = Mapping[str, float]
Entry = Mapping[str, Any]


@dataclass
class Execution:
    """One run of a trial: its folder and what its epochs came to."""

    run_dir: str
    epochs: dict[int, dict[str, float]] = field(default_factory=dict)
    is_done: bool = False


@dataclass
class Trial:
    """One set of values, and what became of it.

    Attributes:
        id: Its name, never given twice in a search.
        values: Configuration keys (and names of a hypermodel) to their values.
        epochs: How many epochs it trains, those of `parent` included.
        initial_epoch: How many of them its parent has trained.
        parent: The trial that it goes on from.
        status: running, completed, pruned or failed.
        reason: Why it failed, or was stopped.
        failures: Why earlier attempts failed.
        failed_dirs: The folders of their runs.
        executions: Its runs, by number from 1; of the latest attempt.
        score: The objective at its best epoch; for a trial that completed or was pruned.
        best_epoch: That epoch.
        work_time: How long something of it ran, all attempts together.
        seconds: The same, once it has ended.
        tuner: Who runs it.
    """

    id: str
    values: dict[str, Any]
    epochs: int
    initial_epoch: int = 0
    parent: str | None = None
    status: str = RUNNING
    reason: str | None = None
    failures: list[str] = field(default_factory=list)
    failed_dirs: list[str] = field(default_factory=list)
    executions: dict[int, Execution] = field(default_factory=dict)
    score: float | None = None
    best_epoch: int | None = None
    work_time: WorkTime = field(default_factory=WorkTime)
    seconds: float | None = None
    tuner: str | None = None

    def curve(self, objective: Objective) -> dict[int, float]:
        """Return the objective by epoch: the mean over the executions that have come so far."""
        values: dict[int, list[float]] = {}
        for execution in self.executions.values():
            for epoch, metrics in execution.epochs.items():
                if objective.name in metrics:
                    values.setdefault(epoch, []).append(metrics[objective.name])
        return {epoch: sum(each) / len(each) for epoch, each in sorted(values.items())}

    def best_point(self, objective: Objective) -> tuple[float | None, int | None]:
        """Return the best finite value of the objective and its epoch."""
        curve = self.curve(objective)
        best = objective.best(curve.values())
        epochs = [epoch for epoch, value in curve.items() if value == best]
        return best, epochs[0] if epochs else None

    def best_run_dir(self, objective: Objective) -> str | None:
        """Return the folder of the run that came to the best value."""
        best: tuple[float, str] | None = None
        for execution in self.executions.values():
            values = (m[objective.name] for m in execution.epochs.values() if objective.name in m)
            value = objective.best(values)
            if value is not None and (best is None or objective.is_better(value, best[0])):
                best = (value, execution.run_dir)
        return best[1] if best else None


@dataclass
class SearchState:
    """Everything that the journal tells. Changed by `apply` only."""

    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    trials: dict[str, Trial] = field(default_factory=dict)
    over: str | None = None
    heard_s: float | None = None  # When anything was written last.

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "SearchState":
        """Return the state that a journal's entries lead to.

        Raises:
            ConfigError: If one of them says nothing that a search says.
        """
        state = cls()
        for number, entry in enumerate(entries, start=1):
            try:
                state.apply(entry)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ConfigError(
                    f"The journal of the search cannot be read: entry {number} is none of a "
                    f"search. Received: {str(entry)[:80]}. Start a new search in another folder "
                    "(hydra.run.dir=...)."
                ) from error
        return state

    def apply(self, entry: Entry) -> None:
        """Take one entry of the journal in."""
        kind = entry["do"]
        if kind == "begin":
            self.settings = dict(entry["settings"])
            self.seed = entry["seed"]
        elif kind == "go_on":
            self.over = None
            for trial in self.with_status(RUNNING):
                trial.work_time.pause(self.heard_s)
        elif kind == "over":
            self.over = entry["reason"]
        elif kind == "create":
            names = ("id", "values", "epochs", "initial_epoch", "parent")
            self.trials[entry["id"]] = Trial(**{name: entry[name] for name in names})
        elif "id" in entry:
            _APPLY[kind](self.trials[entry["id"]], entry)
        self.heard_s = entry.get("at_s", self.heard_s)

    def best(self, objective: Objective) -> Trial | None:
        """Return the best trial, the earliest of equals."""
        best: Trial | None = None
        for trial in self.trials.values():
            if trial.status not in SCORED or trial.score is None:
                continue
            if best is None or best.score is None or objective.is_better(trial.score, best.score):
                best = trial
        return best

    def with_status(self, *statuses: str) -> list[Trial]:
        """Return the trials of these statuses, in order."""
        return [trial for trial in self.trials.values() if trial.status in statuses]

    @property
    def num_failed_in_a_row(self) -> int:
        """How many of the trials that ended last have failed."""
        num = 0
        for trial in reversed(self.trials.values()):
            if trial.status == FAILED:
                num += 1
            elif trial.status in SCORED:
                break
        return num


def _apply_start(trial: Trial, entry: Entry) -> None:
    """A run begins, or goes on after `epoch`."""
    known = trial.executions.get(entry["execution"])
    kept = {e: m for e, m in known.epochs.items() if e <= entry["epoch"]} if known else {}
    trial.executions[entry["execution"]] = Execution(entry["run_dir"], kept)
    trial.tuner = entry.get("tuner")
    if known is not None and not known.is_done:
        trial.work_time.pause()  # Its tuner was lost; nobody knows when.
    trial.work_time.begin(entry["at_s"])


def _apply_epoch(trial: Trial, entry: Entry) -> None:
    metrics = {name: _number(value) for name, value in entry["metrics"].items()}
    trial.executions[entry["execution"]].epochs[entry["epoch"]] = metrics
    trial.work_time.hear(entry["at_s"])


def _apply_ran(trial: Trial, entry: Entry) -> None:
    trial.executions[entry["execution"]].is_done = True
    trial.work_time.hear(entry["at_s"])


def _apply_retry(trial: Trial, entry: Entry) -> None:
    trial.failures.append(entry["reason"])
    trial.failed_dirs += [execution.run_dir for execution in trial.executions.values()]
    trial.executions.clear()
    trial.work_time.pause(entry["at_s"])


def _apply_end(trial: Trial, entry: Entry) -> None:
    trial.status = entry["status"]
    trial.reason = entry["reason"]
    trial.score = entry["score"]
    trial.best_epoch = entry["best_epoch"]
    trial.work_time.pause(entry["at_s"])
    trial.seconds = trial.work_time.ended_s


_APPLY = {
    "start": _apply_start,
    "epoch": _apply_epoch,
    "ran": _apply_ran,
    "retry": _apply_retry,
    "end": _apply_end,
}


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
