"""Keras Tuner's oracles, which choose the values of trials. Imports TensorFlow with them.

An oracle's own files do not tell all of its state (a grid's is lost, for one). So it is never
reloaded: a search that is started again asks a new oracle the same questions, which the journal
holds, and goes on from there.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner.engine import base_tuner
from threadpoolctl import threadpool_limits

from kdist.config.rules import BAYESIAN, GRID, HYPERBAND, RANDOM
from kdist.config.schema import TunerConfig
from kdist.config.space import Hyperparameter
from kdist.errors import ConfigError
from kdist.tuning.exploring import explore
from kdist.tuning.keras_space import plain_value, to_keras_tuner
from kdist.tuning.objective import Objective
from kdist.tuning.trials import FAILED, Entry

FOLDER = "keras_tuner"
_FROM_TRIAL, _FIRST_EPOCH, _EPOCHS = "tuner/trial_id", "tuner/initial_epoch", "tuner/epochs"
_OWN_PREFIX = "tuner/"
_POINTS_FOR_EACH = 3
_UNLIMITED = 10**9


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A new trial, as an oracle wants it.

    Attributes:
        id: The trial's name.
        raw: Every value as the oracle has it; the journal keeps these.
        values: Keys of the space, and names of a hypermodel, to plain values.
        parent: The trial to go on from.
        initial_epoch: How many epochs that one has trained.
        epochs: Epochs to reach, where the oracle says it.
    """

    id: str
    raw: Mapping[str, Any]
    values: Mapping[str, Any]
    parent: str | None = None
    initial_epoch: int = 0
    epochs: int | None = None


class Chooser:
    """Asks one oracle; used from one thread. `replay` brings it to where a journal has ended."""

    def __init__(self, oracle: Any, space: Sequence[Hyperparameter]) -> None:
        """Take over an oracle that has just been made."""
        self._oracle = oracle
        self._space = {entry.key: entry for entry in space}
        self._num_asked = 0

    def ask(self) -> Suggestion | str:
        """Return a new trial; `IDLE` if ends of others can bring one; `STOPPED` if nothing can."""
        self._num_asked += 1
        # Its matrices are small: more threads only wait for each other, a hundred times as long.
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of fits that converge at a bound.
            trial = self._oracle.create_trial(f"ask-{self._num_asked}")
        if trial.status != "RUNNING":
            return str(trial.status)
        raw = dict(trial.hyperparameters.values)
        return Suggestion(
            id=trial.trial_id,
            raw=raw,
            values=self._plain(raw),
            parent=raw.get(_FROM_TRIAL),
            initial_epoch=int(raw.get(_FIRST_EPOCH, 0)),
            epochs=int(raw[_EPOCHS]) if _EPOCHS in raw else None,
        )

    def tell(self, trial_id: str, metrics: Mapping[str, float], epoch: int) -> None:
        """Report what an epoch of a trial came to; the objective is among the metrics."""
        self._oracle.update_trial(trial_id, dict(metrics), step=epoch)

    def end(self, trial_id: str, *, score: float | None, best_epoch: int | None) -> None:
        """Report the end of a trial; without a score it has failed."""
        trial = self._oracle.get_trial(trial_id)
        trial.status = "FAILED" if score is None else "COMPLETED"
        self._oracle.scores[trial_id] = (score, best_epoch)
        self._oracle.end_trial(trial)

    def replay(self, entries: Sequence[Entry]) -> None:
        """Ask and tell again what stands in a journal.

        Raises:
            ConfigError: If the oracle would not have chosen what it once chose.
        """
        for entry in entries:
            kind = entry["do"]
            if kind in ("create", "idle"):
                self._oracle.recorded = entry.get("raw", {})
                answer = self.ask()
                created = answer.id if isinstance(answer, Suggestion) else None
                if created != entry.get("id"):
                    raise ConfigError(
                        "The search cannot be continued: its oracle does not repeat trial "
                        f"{entry.get('id') or created}. Received: {answer}. Was another version of "
                        "keras_tuner installed? Start a new search in another folder "
                        "(hydra.run.dir=...)."
                    )
            elif kind == "end":
                failed = entry["status"] == FAILED
                score = None if failed else entry["score"]
                self.end(entry["id"], score=score, best_epoch=entry["best_epoch"])
        self._oracle.recorded = None

    def _plain(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: plain_value(self._space[name], value) if name in self._space else value
            for name, value in raw.items()
            if not name.startswith(_OWN_PREFIX)
        }


def make_chooser(
    tuner: TunerConfig,
    space: Sequence[Hyperparameter],
    objective: Objective,
    *,
    seed: int,
    max_epochs: int,
    search_dir: Path,
    hypermodel: Any = None,
) -> Chooser:
    """Return the oracle that the configuration names, at its beginning.

    Args:
        tuner: The search's configuration.
        space: The keys that vary.
        objective: What trials are compared by.
        seed: Of its choices.
        max_epochs: Of a trial; hyperband's budget.
        search_dir: Where the oracle's own files go, in a folder of theirs.
        hypermodel: Built here to find the hyperparameters that it uses.
    """
    oracle = _remembering(tuner.name or RANDOM)(
        objective=keras_tuner.Objective(objective.name, objective.direction),
        hyperparameters=to_keras_tuner(space),
        seed=seed + 1,  # 0 would mean any.
        max_consecutive_failed_trials=_UNLIMITED,  # kdist counts them, and says what went wrong.
        **_arguments(tuner, len(space), max_epochs),
    )
    oracle.verbose = 0
    # Sets the folder, and explores a hypermodel.
    base_tuner.BaseTuner(
        oracle,
        hypermodel=hypermodel,
        directory=str(search_dir),
        project_name=FOLDER,
        overwrite=True,
    )
    if hypermodel is not None:
        explore(oracle, hypermodel, {entry.key for entry in space})
    return Chooser(oracle, space)


def _arguments(tuner: TunerConfig, num_dimensions: int, max_epochs: int) -> dict[str, Any]:
    """Return what only this oracle takes. None of them counts trials: the search does."""
    if tuner.name == HYPERBAND:
        return {
            "max_epochs": max_epochs,
            "factor": tuner.factor,
            "hyperband_iterations": tuner.iterations,
        }
    if tuner.name == BAYESIAN:
        points = tuner.num_initial_points or _POINTS_FOR_EACH * max(1, num_dimensions)
        return {"max_trials": None, "num_initial_points": points}
    return {"max_trials": None}


def _remembering(name: str) -> Any:
    """Return the oracle's class with a memory for a journal, by its documented extension points."""
    base = {
        RANDOM: keras_tuner.oracles.RandomSearchOracle,
        GRID: keras_tuner.oracles.GridSearchOracle,
        BAYESIAN: keras_tuner.oracles.BayesianOptimizationOracle,
        HYPERBAND: keras_tuner.oracles.HyperbandOracle,
    }[name]

    class Remembering(base):
        """Takes scores as the search has them, and recorded choices where there are any."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.scores: dict[str, tuple[float | None, int | None]] = {}
            self.recorded: Mapping[str, Any] | None = None

        def populate_space(self, trial_id: str) -> Any:
            """Return the recorded values; computed again, too, where that advances the oracle."""
            if self.recorded is None:
                return super().populate_space(trial_id)
            recorded = dict(self.recorded)
            if name == BAYESIAN and not self._is_at_random():
                return {"status": "RUNNING", "values": recorded}  # Fitting it would take long.
            response = super().populate_space(trial_id)
            if response["status"] != "RUNNING":
                return response
            if response["values"].get(_FROM_TRIAL) != recorded.get(_FROM_TRIAL):
                return {"status": "STOPPED", "values": None}
            return {"status": "RUNNING", "values": recorded}

        def score_trial(self, trial: Any) -> None:
            """Take the score over all executions, of the latest attempt only."""
            trial.score, trial.best_step = self.scores[trial.trial_id]

        def _is_at_random(self) -> bool:
            completed = [t for t in self.trials.values() if t.status == "COMPLETED"]
            return len(completed) < (self.num_initial_points or 0)

    return Remembering
