"""Stopping trials that are hopeless. Pure decisions."""

import statistics
from collections.abc import Iterable

from kdist.tuning.objective import Objective
from kdist.tuning.trials import SCORED, Trial


def is_hopeless(
    trial: Trial,
    others: Iterable[Trial],
    objective: Objective,
    *,
    min_trials: int,
    min_epochs: int,
) -> bool:
    """Return whether a trial's best value so far is worse than the median of the others'.

    Others count as they stood at the same epoch, and only those that have ended.

    Args:
        trial: The one that runs.
        others: All trials of the search.
        objective: What they are compared by.
        min_trials: Others needed for a comparison.
        min_epochs: Epochs that the trial gets in any case.
    """
    own = trial.curve(objective)
    if not own or max(own) < min_epochs:
        return False
    epoch = max(own)
    reached = [
        best
        for other in others
        if other.id != trial.id and other.status in SCORED
        if (best := _best_until(other, epoch, objective)) is not None
    ]
    best = _best_until(trial, epoch, objective)
    if best is None or len(reached) < min_trials:
        return False
    return objective.is_better(statistics.median(reached), best)


def _best_until(trial: Trial, epoch: int, objective: Objective) -> float | None:
    """Return the best value up to an epoch; `None` where the trial did not come so far."""
    curve = trial.curve(objective)
    if epoch not in curve:
        return None
    return objective.best(value for at, value in curve.items() if at <= epoch)
