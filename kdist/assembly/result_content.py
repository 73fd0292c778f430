"""What result.json says: the run as it was asked for, and what training came to."""

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import TaskType
from kdist.cluster.traits import StrategyTraits
from kdist.config.schema import Config
from kdist.records.result import COMPLETED, FAILED, STOPPED, blank_result
from kdist.training.trainer import TrainingPlan, TrainingState


def beginning(
    config: Config,
    traits: StrategyTraits,
    spec: ClusterSpec,
    plan: TrainingPlan,
    *,
    num_replicas: int,
    warnings: Sequence[str],
    run_dir: Path,
) -> dict[str, Any]:
    """Return a result with every key of the contract and what is known before the first step."""
    return blank_result(
        strategy=traits.name,
        replication=traits.replication,
        update=traits.update,
        cluster={str(kind): spec.num(kind) for kind in TaskType},
        num_replicas=num_replicas,
        global_batch_size=config.data.batch_size,
        epochs=plan.epochs,
        steps_per_epoch=plan.steps_per_epoch,
        warnings=list(warnings),
        run_dir=str(run_dir),
        versions={name: version(name) for name in ("kdist", "tensorflow", "keras")},
    )


def ending(
    state: TrainingState,
    *,
    best: Mapping[str, Any] | None,
    started_at_s: float,
    num_workers_lost: int,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Return the entries that tell what training came to, finished or not."""
    found: dict[str, Any] = {
        "batches_seen": state.batches_seen,
        "global_step": state.num_updates,
        "examples_seen": state.examples_seen,
        "metrics": state.metrics,
        "best": best,
        "seconds": _seconds(state, started_at_s),
        "workers_lost": num_workers_lost,
        "warnings": list(warnings),
    }
    if state.final_metrics:
        found["final_metrics"] = state.final_metrics
    if state.timed_s > 0:
        found["steps_per_second"] = state.timed_steps / state.timed_s
        per_step = state.examples_seen / max(1, state.batches_seen)
        found["examples_per_second"] = found["steps_per_second"] * per_step
    return found


def ended_as(stop_reason: str | None, failure: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return status and error of a run whose chief has saved all.

    Args:
        stop_reason: The signal that stopped training, if one did.
        failure: Why the launcher ends the run, if it does; by a signal to the chief.
    """
    status = COMPLETED if stop_reason is None else STOPPED
    if failure is None or (status == COMPLETED and failure.get("is_consequence")):
        return {"status": status, "error": None}
    error = {name: failure.get(name) for name in ("type", "message", "task")}
    return {"status": FAILED, "error": error}


def _seconds(state: TrainingState, started_at_s: float) -> dict[str, float | None]:
    startup = None
    if state.first_step_at_s is not None:
        startup = time.time() - (time.monotonic() - state.first_step_at_s) - started_at_s
    return {"total": time.time() - started_at_s, "startup": startup, "train": state.train_s}
