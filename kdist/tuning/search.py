"""A search from its first decision to its last file; the composition of its parts."""

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kdist import config as kdist_config
from kdist.errors import KdistError, TrainingError
from kdist.launch.request import LauncherLink
from kdist.records.events import EventLog
from kdist.records.result import COMPLETED, FAILED, STOPPED
from kdist.records.run_folder import RunFolder, RunFolderTakenError
from kdist.tuning.book import Book
from kdist.tuning.console import SearchConsole
from kdist.tuning.journal import NAME, Journal, read_journal
from kdist.tuning.loop import Stop, Wake, run_trials
from kdist.tuning.objective import Objective
from kdist.tuning.orders import space_of
from kdist.tuning.request import TRIALS, SearchRequest
from kdist.tuning.results import SearchResults
from kdist.tuning.serving import serve
from kdist.tuning.slot import make_slots
from kdist.tuning.texts import summary_text, unsearched_text
from kdist.tuning.trials import RUNNING, SearchState, Trial

_LOCK_DEADLINE_S = 15.0


class Search:
    """The process that holds the book; it also runs the trials, unless others do."""

    def __init__(self, request: SearchRequest, link: LauncherLink, stop: Stop, wake: Wake) -> None:
        """Hold the parts; `run` does the work."""
        self._request = request
        self._link = link
        self._stop = stop
        self._wake = wake
        self._config = kdist_config.load(request.config)
        self._space = space_of(self._config)
        self._unsearched: set[str] = set()
        tuner = self._config.tuner
        self._objective = Objective.of(tuner.objective, tuner.direction)

    def run(self) -> int:
        """Search; return the exit code.

        Raises:
            KdistError: If the search cannot go on, or no trial came to an end.
        """
        hypermodel = self._hypermodel()  # One that is refused leaves no folder.
        with self._open_folder() as folder:
            self._link.send("run_folder_ready", run_dir=str(folder.path))
            self._link.send("task_ready")
            entries = read_journal(folder.path / NAME)
            state = SearchState.of(entries)
            journal = Journal(folder.path / NAME)
            if state.settings:
                state.apply(journal.write("go_on"))
            else:
                settings = dict(self._request.settings)
                entry = journal.write("begin", settings=settings, seed=self._seed())
                state.apply(entry)
            console = SearchConsole(self._request.console, state, self._objective)
            console.say(self._opening(folder.path, state))
            chooser = self._chooser(state, folder.path, hypermodel)
            chooser.replay(entries)
            results = SearchResults(
                folder, self._config, self._request.config, state, self._objective
            )
            events = EventLog(folder.events_jsonl)
            statuses = {trial.id: trial.status for trial in state.trials.values()}

            def on_change(trial: Trial) -> None:
                if statuses.get(trial.id) != trial.status:
                    is_new = trial.id not in statuses
                    name = "trial_started" if is_new else "trial_ended"
                    events.write(name, trial=trial.id, status=trial.status, objective=trial.score)
                    statuses[trial.id] = trial.status
                    if is_new:
                        self._warn_of_unsearched(hypermodel, trial, console)
                    if trial.status != RUNNING:
                        results.update()
                console.changed(trial)

            book = Book(self._config, self._objective, chooser, journal, state, on_change)
            with self._concluded(state, results, console):
                self._carry_out(book, folder.path, console)
                if self._stop.first is not None:
                    state.apply(journal.write("stop"))  # So long have its trials run.
        return 128 + self._stop.first if self._stop.first is not None else 0

    def _carry_out(self, book: Book, search_dir: Path, console: SearchConsole) -> None:
        """Run the trials here, side by side."""
        config = self._config
        if not self._request.role.is_local:
            settings = self._request.settings
            serve(book, self._request.role, config, settings, search_dir, self._stop, console)
            return
        slots = make_slots(
            self._request,
            config,
            self._space,
            book,
            trials_dir=search_dir / TRIALS,
            tuner="local",
            wake=self._wake,
        )
        run_trials(
            slots,
            book,
            tuner="local",
            wake=self._wake,
            stop=self._stop,
            stop_grace_s=config.cluster.stop_grace_s,
            on_tick=console.tick,
        )

    @contextlib.contextmanager
    def _concluded(
        self, state: SearchState, results: SearchResults, console: SearchConsole
    ) -> Iterator[None]:
        """Write what came of the search, however it ended, and refuse one without a result."""
        began_s = time.monotonic()
        error: BaseException | None = None
        try:
            yield
            error = self._failure(state)
        except Exception as raised:
            error = raised
        finally:
            console.close()
        is_stopped = self._stop.first is not None
        status = FAILED if error is not None else STOPPED if is_stopped else COMPLETED
        seconds = time.monotonic() - began_s
        try:
            results.conclude(status=status, seconds=seconds, error=error)
        except KdistError:
            if error is None:
                raise
        console.final_table()
        console.say(f"Search {status}: {summary_text(state, self._objective)}.")
        if error is not None:
            raise error

    def _failure(self, state: SearchState) -> KdistError | None:
        """Return why a search that is over has failed."""
        failed = [trial for trial in state.trials.values() if trial.status == "failed"]
        num = state.num_failed_in_a_row
        if self._stop.first is not None or not failed:
            return None
        if state.best(self._objective) is None:
            first = failed[0]
            return TrainingError(
                f"All {len(failed)} trials failed. The first cause (trial {first.id}): "
                f"{first.reason}"
            )
        if num >= self._config.tuner.max_failures_in_a_row:
            first = failed[-num]
            return TrainingError(
                f"The last {num} trials failed (tuner.max_failures_in_a_row). The first cause "
                f"(trial {first.id}): {first.reason}"
            )
        return None

    def _hypermodel(self) -> Any:
        section = self._config.tuner.hypermodel
        if section is None:
            return None
        from kdist.distribute import runtime
        from kdist.tuning import hypermodel as hypermodels

        # Its model is built here to be explored; accelerators are for trials.
        runtime.configure(num_devices=1, accelerators=(), seed=0, deterministic=False)
        return hypermodels.make(section)

    def _warn_of_unsearched(self, hypermodel: Any, trial: Trial, console: SearchConsole) -> None:
        """Name the hyperparameters of a new trial that are searched nowhere, each once."""
        if hypermodel is None:
            return
        from kdist.tuning.hypermodel import unsearched

        for name, default in unsearched(hypermodel, trial.values).items():
            if name not in self._unsearched:
                console.say(unsearched_text(trial.id, name, default))
                self._unsearched.add(name)

    def _chooser(self, state: SearchState, search_dir: Path, hypermodel: Any):
        from kdist.tuning.oracles import make_chooser

        return make_chooser(
            self._config.tuner,
            self._space,
            self._objective,
            seed=state.seed,
            max_epochs=self._config.tuner.max_epochs or self._config.epochs,
            search_dir=search_dir,
            hypermodel=hypermodel,
        )

    def _seed(self) -> int:
        for seed in (self._config.tuner.seed, self._config.seed):
            if seed is not None:
                return seed
        return random.SystemRandom().randrange(2**31 - 1)

    def _open_folder(self) -> RunFolder:
        """Make the search's folder, or lock the one in which it goes on.

        The processes of a search that was killed a moment ago may still hold it.
        """
        request = self._request
        if not request.goes_on:
            return RunFolder.create(
                request.run_dir, request.config_yaml, make_unique=request.may_rename_run_dir
            )
        end_s = time.monotonic() + _LOCK_DEADLINE_S
        while True:
            try:
                return RunFolder.reopen(request.run_dir)
            except RunFolderTakenError:
                if time.monotonic() >= end_s or self._stop.first is not None:
                    raise
            self._wake.wait(0.1)

    def _opening(self, search_dir: Path, state: SearchState) -> str:
        tuner = self._config.tuner
        num = "" if tuner.max_trials is None else f", {tuner.max_trials} trials"
        begun = f"\nGoes on: {summary_text(state, self._objective)}" if state.trials else ""
        return (
            f"Search: {tuner.name}{num}, {self._objective.name} "
            f"({self._objective.direction}) over {', '.join(e.key for e in self._space) or '-'}"
            f"\nFolder: {search_dir}{begun}"
        )
