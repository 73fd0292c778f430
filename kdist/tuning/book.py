"""The chief's book: which trial runs next, and what becomes of it. Used from one thread."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kdist.config.schema import Config
from kdist.errors import ConfigError
from kdist.tuning.desk import FAIL, PRUNE, Assignment, Verdict
from kdist.tuning.journal import Journal
from kdist.tuning.objective import Objective
from kdist.tuning.pruner import is_hopeless
from kdist.tuning.texts import EXHAUSTED, FAILURES, MAX_TRIALS
from kdist.tuning.trials import COMPLETED, FAILED, PRUNED, RUNNING, SearchState, Trial

STOPPED = "STOPPED"


class Oracle(Protocol):
    """What the book needs of `kdist.tuning.oracles.Chooser`."""

    def ask(self) -> Any:
        """Return a suggestion, or a status as text."""
        ...

    def tell(self, trial_id: str, metrics: Mapping[str, float], epoch: int) -> None:
        """Report an epoch."""
        ...

    def end(self, trial_id: str, *, score: float | None, best_epoch: int | None) -> None:
        """Report an end."""
        ...


class Book:
    """A `Desk` that writes every decision into the journal before it is acted upon."""

    def __init__(
        self,
        config: Config,
        objective: Objective,
        oracle: Oracle,
        journal: Journal,
        state: SearchState,
        on_change: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        """Go on from `state`, which the oracle has been brought to.

        Args:
            config: The search's configuration.
            objective: What trials are compared by.
            oracle: Chooses values.
            journal: Takes every decision.
            state: What the journal tells so far.
            on_change: Told of every trial that begins, comes to an epoch, or ends.
        """
        self.state = state
        self.objective = objective
        self._config = config
        self._tuner = config.tuner
        self._oracle = oracle
        self._journal = journal
        self._on_change = on_change
        self._waiting = [trial.id for trial in state.with_status(RUNNING)]
        self._handed_out: set[str] = set()
        self._is_idle = False

    @property
    def is_over(self) -> bool:
        """Whether no further trial will come: none runs, none waits, and there is no new one."""
        return self.state.over is not None and not self._waiting and not self._handed_out

    def next_trial(self, tuner: str) -> Assignment | None:
        """Return a trial that waits to go on or to be run again, else a new one."""
        if self._waiting:
            return self._hand_out(self.state.trials[self._waiting.pop(0)])
        if self.state.over is not None or self._is_idle:
            return None
        max_trials = self._tuner.max_trials
        if max_trials is not None and len(self.state.trials) >= max_trials:
            self._end_search(MAX_TRIALS)
            return None
        answer = self._oracle.ask()
        if isinstance(answer, str):
            if answer == STOPPED or not self._handed_out:
                self._end_search(EXHAUSTED)
            else:
                self._record("idle")
                self._is_idle = True
            return None
        self._record(
            "create",
            id=answer.id,
            raw=dict(answer.raw),
            values=dict(answer.values),
            epochs=answer.epochs or self._tuner.max_epochs or self._config.epochs,
            initial_epoch=answer.initial_epoch,
            parent=answer.parent,
        )
        return self._hand_out(self.state.trials[answer.id])

    def started(self, trial: str, execution: int, run_dir: str, epoch: int, tuner: str) -> None:
        """Write down that a run begins."""
        self._record(
            "start", id=trial, execution=execution, run_dir=run_dir, epoch=epoch, tuner=tuner
        )

    def epoch(
        self, trial: str, execution: int, epoch: int, metrics: Mapping[str, float]
    ) -> Verdict:
        """Write down an epoch, tell the oracle, and judge."""
        has_objective = self.objective.name in metrics
        if not has_objective and not self._knows_objective():
            raise ConfigError(
                f"tuner.objective must be a metric of the runs. Received: {self.objective.name}. "
                f"They have: {', '.join(metrics)}."
            )
        self._record("epoch", id=trial, execution=execution, epoch=epoch, metrics=dict(metrics))
        if not has_objective:  # Other trials have it, and this one's values take it away.
            return Verdict()
        value = metrics[self.objective.name]
        if not math.isfinite(value):
            return Verdict(FAIL, f"{self.objective.name} was {value} in epoch {epoch}.")
        self._oracle.tell(trial, metrics, epoch)
        if self._tuner.pruner is None or not is_hopeless(
            self.state.trials[trial],
            self.state.trials.values(),
            self.objective,
            min_trials=self._tuner.pruner_min_trials,
            min_epochs=self._tuner.pruner_min_epochs,
        ):
            return Verdict()
        return Verdict(PRUNE, f"worse than the median of the others at epoch {epoch}")

    def ran(self, trial: str, execution: int) -> None:
        """Write down that a run came to its end."""
        self._record("ran", id=trial, execution=execution)

    def completed(self, trial: str, pruned: str | None = None) -> None:
        """Score a trial, and tell the oracle."""
        score, best_epoch = self.state.trials[trial].best_point(self.objective)
        if score is None:
            self.failed(trial, f"No epoch came to a finite {self.objective.name}.")
            return
        status = COMPLETED if pruned is None else PRUNED
        self._end(trial, status, pruned, score, best_epoch)

    def failed(self, trial: str, reason: str) -> None:
        """Let a trial be run again, if it may be, or mark it as failed."""
        may_retry = len(self.state.trials[trial].failures) < self._tuner.max_retries
        if may_retry and self.state.over != FAILURES:
            self._record("retry", id=trial, reason=reason)
            self._handed_out.discard(trial)
            self._waiting.append(trial)
            return
        self._end(trial, FAILED, reason, None, None)
        if self.state.num_failed_in_a_row >= self._tuner.max_failures_in_a_row:
            self._waiting.clear()
            self._end_search(FAILURES)

    def hand_out_again(self, trial: str) -> None:
        """Let somebody else go on with a trial whose tuner was lost."""
        if trial in self._handed_out:
            self._handed_out.discard(trial)
            self._waiting.append(trial)

    def _knows_objective(self) -> bool:
        return any(trial.curve(self.objective) for trial in self.state.trials.values())

    def _hand_out(self, trial: Trial) -> Assignment:
        self._handed_out.add(trial.id)
        left = [k for k in sorted(trial.executions) if not trial.executions[k].is_done]
        execution = left[0] if left else len(trial.executions) + 1
        parent = self.state.trials.get(trial.parent or "")
        return Assignment(
            trial=trial.id,
            values=trial.values,
            epochs=trial.epochs,
            initial_epoch=trial.initial_epoch,
            parent_dirs=tuple(parent.executions[k].run_dir for k in sorted(parent.executions))
            if parent
            else (),
            attempt=len(trial.failures),
            execution=execution,
            run_dir=trial.executions[execution].run_dir if left else None,
        )

    def _end(
        self,
        trial: str,
        status: str,
        reason: str | None,
        score: float | None,
        best_epoch: int | None,
    ) -> None:
        self._record(
            "end", id=trial, status=status, reason=reason, score=score, best_epoch=best_epoch
        )
        self._oracle.end(trial, score=score, best_epoch=best_epoch)
        self._handed_out.discard(trial)
        self._is_idle = False

    def _end_search(self, reason: str) -> None:
        self._record("over", reason=reason)

    def _record(self, do: str, **fields: Any) -> None:
        entry = self._journal.write(do, **fields)
        self.state.apply(entry)
        if "id" in entry:
            self._on_change(self.state.trials[entry["id"]])
