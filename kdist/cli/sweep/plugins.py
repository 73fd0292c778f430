"""Hydra's sweepers that choose jobs as they go, such as Optuna's, on kdist's own launcher."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

from kdist.cli.sweep.composing import SweepPlan
from kdist.cli.sweep.grid import without_globs
from kdist.cli.sweep.jobs import Outcome
from kdist.cli.sweep.sweep import Sweep, SweepEnded
from kdist.errors import ConfigError, KdistError, TrainingError
from kdist.records.result import COMPLETED


class SweepLauncher(Launcher):
    """What a sweeper of Hydra launches jobs with; their results are values of a metric."""

    def __init__(self, sweep: Sweep) -> None:
        """Launch every job in `sweep`."""
        self._sweep = sweep

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Take nothing: the sweep knows all of it."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a batch of jobs."""
        outcomes = self._sweep.launch(job_overrides, initial_job_idx)
        return [_returned(*pair) for pair in zip(job_overrides, outcomes, strict=True)]


class _Failed(JobReturn):
    """A job without a value. Its error was told when it happened."""

    @JobReturn.return_value.getter
    def return_value(self) -> Any:
        """Raise what went wrong, as sweepers expect."""
        raise self._return_value


def run_sweeper(plan: SweepPlan, sweep: Sweep) -> None:
    """Let the chosen sweeper choose jobs until it has enough.

    A failed job does not end the sweep, unless `hydra.sweeper.max_failure_rate` was typed.

    Raises:
        ConfigError: If it refuses its settings, or ends with an error of its own.
        SweepEnded: If no other job may start.
    """
    config = plan.tree
    sweeper = config.hydra.sweeper
    typed = {each.key_or_group for each in plan.typed}
    with read_write(config.hydra), open_dict(config.hydra):
        if "max_failure_rate" in sweeper and "hydra.sweeper.max_failure_rate" not in typed:
            sweeper.max_failure_rate = 1.0
    if isinstance(sweeper.get("direction"), Sequence) and not isinstance(sweeper.direction, str):
        raise ConfigError(
            "A job has one value to go by. Received: hydra.sweeper.direction="
            f"{sweeper.direction}. Name one direction, and the metric: sweep.metric=..."
        )
    logging.getLogger("hydra_plugins").setLevel(logging.CRITICAL)  # Failures have been told.
    context = HydraContext(config_loader=plan.loader, callbacks=Callbacks(config))
    arguments = without_globs(plan.arguments, plan.loader)
    try:
        with _launching_with(SweepLauncher(sweep)):
            chosen = Plugins.instance().instantiate_sweeper(
                hydra_context=context, task_function=_no_task, config=config
            )
        chosen.sweep(arguments=arguments)
    except (KdistError, SweepEnded):
        raise
    except Exception as error:
        raise ConfigError(
            f"hydra/sweeper={plan.sweeper} raised {type(error).__name__}: {error}"
        ) from error


@contextmanager
def _launching_with(launcher: Launcher) -> Iterator[None]:
    """Give this launcher to every sweeper that is set up meanwhile."""
    plugins = Plugins.instance()
    vars(plugins)["instantiate_launcher"] = lambda **_: launcher
    try:
        yield
    finally:
        del vars(plugins)["instantiate_launcher"]


def _returned(overrides: Sequence[str], outcome: Outcome) -> JobReturn:
    if outcome.status == COMPLETED and outcome.value is not None:
        return JobReturn(
            overrides=overrides, status=JobStatus.COMPLETED, _return_value=outcome.value
        )
    error = TrainingError(outcome.error or "The run has no finite value to go by.")
    return _Failed(overrides=overrides, status=JobStatus.FAILED, _return_value=error)


def _no_task(_: DictConfig) -> Any:
    raise AssertionError("Jobs are launched, not called.")
