"""One trial at a time: its runs one after the other, from its assignment to its end."""

from collections.abc import Callable
from pathlib import Path

from kdist.config.schema import Config
from kdist.config.space import Hyperparameter
from kdist.errors import EnvironmentFault, KdistError
from kdist.records.resumption import AUTO
from kdist.records.run_folder import RunFolder
from kdist.tuning.desk import FAIL, PRUNE, Assignment, Desk, Verdict
from kdist.tuning.orders import checkpoint_dir, run_name, run_settings, split_values
from kdist.tuning.request import ComposeTrial, SearchRequest, TrialOrder
from kdist.tuning.trial_run import TrialRun


class Slot:
    """Runs the trials that it is given, and tells the desk. Used from one thread."""

    def __init__(
        self,
        number: int,
        config: Config,
        space: tuple[Hyperparameter, ...],
        compose: ComposeTrial,
        desk: Desk,
        *,
        trials_dir: Path,
        tuner: str,
        wake: Callable[[], None],
    ) -> None:
        """Stand idle.

        Args:
            number: Which of the parallel trials of this machine it runs, from 0.
            config: The search's configuration.
            space: The keys that vary.
            compose: Makes runs.
            desk: Told what becomes of trials.
            trials_dir: Where run folders go.
            tuner: Who runs the trials, for the table.
            wake: Called (in another thread) when a run is over.
        """
        self._number = number
        self._config = config
        self._space = space
        self._compose = compose
        self._desk = desk
        self._trials_dir = trials_dir
        self._tuner = tuner
        self._wake = wake
        self._assignment: Assignment | None = None
        self._execution = 1
        self._run: TrialRun | None = None
        self._verdict: Verdict | None = None
        self._is_stopping = False

    @property
    def is_idle(self) -> bool:
        """Whether it could run a trial."""
        return self._assignment is None

    def begin(self, assignment: Assignment) -> None:
        """Start a trial, or go on with one that was interrupted."""
        if assignment.execution > self._config.tuner.executions_per_trial:
            self._desk.completed(assignment.trial)  # It was interrupted right before that.
            return
        self._assignment = assignment
        self._execution = assignment.execution
        begun = assignment.run_dir
        is_here = begun is not None and Path(begun).is_dir()  # Not on another machine.
        self._start(assignment, begun if is_here else None)

    def look(self) -> None:
        """Tell what is new of the trial, and start what comes next."""
        if self._run is None or self._assignment is None:
            return
        is_over = self._run.is_over  # Before reading, so that nothing is missed.
        was_stopped = self._verdict is not None or self._is_stopping
        if not was_stopped or self._run.is_completed:
            for epoch, metrics in self._run.new_epochs():
                verdict = self._desk.epoch(self._assignment.trial, self._execution, epoch, metrics)
                if verdict.action in (FAIL, PRUNE) and self._verdict is None:
                    self._verdict = verdict
                    self._run.stop()
        if is_over:
            self._take_end(self._assignment, self._run)

    def stop(self, number: int) -> None:
        """Let the run end with a checkpoint; the trial stays unfinished."""
        self._is_stopping = True
        if self._run is not None:
            self._run.stop(number)

    def is_over_within(self, deadline_s: float) -> bool:
        """Wait for the run to end; return whether it did."""
        if self._run is not None:
            self._run.join(deadline_s)
        return self._run is None or self._run.is_over

    def _start(self, assignment: Assignment, interrupted: str | None) -> None:
        """Start one run of the trial: anew, from the parent's state, or where it stood."""
        name = run_name(assignment.trial, self._execution, assignment.attempt)
        run_dir = Path(interrupted) if interrupted else self._trials_dir / name
        values, model_values = split_values(self._space, assignment.values)
        order = TrialOrder(
            values=values,
            settings=run_settings(
                self._config,
                epochs=assignment.epochs,
                run_name=name,
                execution=self._execution,
                resume=self._origin(assignment),
                hypermodel_values=model_values,
            ),
            run_dir=str(run_dir),
            slot=self._number,
            num_slots=self._config.tuner.parallel_trials,
        )
        self._verdict = None
        try:
            self._run = TrialRun(self._compose(order), self._wake, goes_on=interrupted is not None)
        except KdistError as error:
            is_machines = isinstance(error, EnvironmentFault)
            self._fail(assignment, run_dir, str(error), is_machines_fault=is_machines)
            return
        self._desk.started(
            assignment.trial, self._execution, str(run_dir), assignment.initial_epoch, self._tuner
        )
        self._run.start(seen_epoch=assignment.initial_epoch)

    def _origin(self, assignment: Assignment) -> str:
        """Return what the run begins from; its own checkpoints, if there are any, come first.

        A parent whose checkpoints are not here (but on another machine, say) cannot be resumed:
        all epochs are trained.
        """
        here = [found for each in assignment.parent_dirs if (found := self._checkpoints_of(each))]
        return here[min(self._execution, len(here)) - 1] if here else AUTO

    def _checkpoints_of(self, run_dir: str) -> str | None:
        elsewhere = self._config.checkpoint.dir
        if elsewhere is not None:
            return checkpoint_dir(elsewhere, Path(run_dir).name)
        return run_dir if RunFolder(Path(run_dir)).checkpoints.is_dir() else None

    def _has_checkpoint(self, run_dir: str) -> bool:
        place = self._checkpoints_of(run_dir)
        if place is None or self._config.checkpoint.dir is None:
            return place is not None
        return "://" in place or any(Path(place).glob("step-*"))

    def _take_end(self, assignment: Assignment, run: TrialRun) -> None:
        verdict = self._verdict
        if self._is_stopping and not run.is_completed:
            self._finish()  # Whoever starts the search again goes on with it.
        elif run.is_completed and (verdict is None or verdict.action != FAIL):
            self._desk.ran(assignment.trial, self._execution)
            has_more = self._execution < self._config.tuner.executions_per_trial
            if has_more and self._is_stopping:
                self._finish()
            elif has_more and verdict is None:
                self._execution += 1
                self._start(assignment, None)
            else:
                self._finish()
                self._desk.completed(assignment.trial)
        elif verdict is not None and verdict.action == PRUNE and run.is_stopped:
            self._finish()
            self._desk.completed(assignment.trial, verdict.reason)
        elif verdict is not None and verdict.action == FAIL and verdict.reason is not None:
            self._fail(assignment, run.run_dir, verdict.reason)
        else:
            is_machines = run.is_machines_fault
            self._fail(assignment, run.run_dir, run.reason, is_machines_fault=is_machines)

    def _fail(
        self, assignment: Assignment, run_dir: Path, reason: str, *, is_machines_fault: bool = False
    ) -> None:
        """Tell that a run failed; a fault of the machine says nothing about the values.

        Raises:
            EnvironmentFault: If it is one, and running the trial anew would lose what it has, or
                was tried already. The trial stays unfinished.
        """
        self._finish()
        has_retry = assignment.attempt < self._config.tuner.max_retries
        if is_machines_fault and (self._has_checkpoint(str(run_dir)) or not has_retry):
            raise EnvironmentFault(
                f"Trial {assignment.trial} cannot go on: {reason} Then start the same command "
                "again, which goes on with it."
            )
        self._desk.failed(assignment.trial, reason)

    def _finish(self) -> None:
        self._assignment = self._run = None


def make_slots(
    request: SearchRequest,
    config: Config,
    space: tuple[Hyperparameter, ...],
    desk: Desk,
    *,
    trials_dir: Path,
    tuner: str,
    wake: Callable[[], None],
) -> list[Slot]:
    """Return the slots of this machine, as `tuner.parallel_trials` says."""
    return [
        Slot(
            number,
            config,
            space,
            request.compose,
            desk,
            trials_dir=trials_dir,
            tuner=tuner,
            wake=wake,
        )
        for number in range(config.tuner.parallel_trials)
    ]
