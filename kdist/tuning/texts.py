"""What a search says in words. Pure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kdist.config.rules import HYPERBAND
from kdist.config.schema import Config
from kdist.config.space import BOOL, CHOICE, Hyperparameter
from kdist.tuning.objective import Objective
from kdist.tuning.role import Role
from kdist.tuning.trials import FAILED, SCORED, SearchState

MAX_TRIALS = "max_trials"
EXHAUSTED = "exhausted"
FAILURES = "failures"


def plan_text(config: Config, space: Sequence[Hyperparameter], role: Role) -> str:
    """Return what `command=plan` shows of a search, before the plan of its first trial."""
    tuner = config.tuner
    objective = Objective.of(tuner.objective, tuner.direction)
    epochs = tuner.max_epochs or config.epochs
    num = (
        "as many trials as there are" if tuner.max_trials is None else f"{tuner.max_trials} trials"
    )
    up_to = "up to " if tuner.name == HYPERBAND else ""
    lines = [
        f"Search: {tuner.name}, {num} of {up_to}{epochs} epochs, {tuner.parallel_trials} at a time",
        f"Objective: {objective.name}, {objective.direction}",
    ]
    if not role.is_local:
        doing = "serves the oracle at" if role.is_chief else "runs trials for"
        lines.append(f"Role: {role.tuner_id} {doing} {role.address}")
    if tuner.hypermodel is not None:
        lines.append(f"Hypermodel: {tuner.hypermodel.target}")
    width = max((len(entry.key) for entry in space), default=0)
    lines += ["Space:", *(f"  {entry.key:<{width}}  {entry_text(entry)}" for entry in space)]
    return "\n".join([*lines, "", "The first trial:", ""])


def entry_text(entry: Hyperparameter) -> str:
    """Return the values of one key in words."""
    if entry.type in (CHOICE, BOOL):
        text = " | ".join(str(value) for value in entry.extremes)
    else:
        step = "" if entry.step is None else f", step {entry.step:g}"
        sampling = "" if entry.sampling == "linear" else f", {entry.sampling}"
        text = f"{entry.type} {entry.min:g} to {entry.max:g}{step}{sampling}"
    conditions = [f"{key}={' or '.join(map(str, each))}" for key, each in entry.when.items()]
    return text + (f" (when {', '.join(conditions)})" if conditions else "")


def finished_text(
    state: SearchState, objective: Objective, max_trials: int | None, search_dir: Path
) -> str | None:
    """Return what to say where a search is over; `None` where it has something left to do."""
    num = len(state.trials)
    has_more = state.over == MAX_TRIALS and (max_trials is None or num < max_trials)
    if state.over is None or has_more or state.over == FAILURES:
        return None
    num_failed = len(state.with_status(FAILED))
    failed = f", {num_failed} of them failed" if num_failed else ""
    best = state.best(objective)
    if best is None or best.score is None:
        reasons = [trial.reason for trial in state.with_status(FAILED)]
        found = f"no trial came to an end: {reasons[0] if reasons else 'none was run'}"
    else:
        found = f"best {objective.name} {best.score:.6g} (trial {best.id})"
    more = " Raise tuner.max_trials for more." if state.over == MAX_TRIALS else ""
    return f"This search is finished: {num} trials{failed}, {found}.{more} See {search_dir}.\n"


def unsearched_text(trial: str, name: str, default: Any) -> str:
    """Return the warning of a hyperparameter that only some of a hypermodel's builds declare."""
    return (
        f"Warning: trial {trial} uses the hyperparameter {name}, which is not searched: it is "
        f"{default} in every trial, for no build declared it while the hypermodel was explored. "
        "Declare it outside of Python's `if` and `for`, or with hp.conditional_scope around them "
        "(docs/searches.md)."
    )


def summary_text(state: SearchState, objective: Objective) -> str:
    """Return one line on how a search stands."""
    best = state.best(objective)
    done = len(state.with_status(*SCORED))
    failed = len(state.with_status(FAILED))
    parts = [f"{done} trials done", f"{failed} failed" if failed else ""]
    if best is not None and best.score is not None:
        parts.append(f"best {objective.name} {best.score:.6g} (trial {best.id})")
    return ", ".join(part for part in parts if part)
