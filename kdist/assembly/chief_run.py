"""The chief's part of a run: its folder, where it begins, reports, checkpoints, result."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kdist.assembly.cluster_link import say
from kdist.assembly.contribution_log import ContributionLog, contribution_log
from kdist.assembly.facts import opening_facts
from kdist.assembly.failures import PEER_ERRORS, as_kdist_error, with_lost_peer
from kdist.assembly.history import History, launched_story, read_history
from kdist.assembly.identity import run_facts
from kdist.assembly.keeping import checkpoints_of, make_keeper
from kdist.assembly.result_content import beginning, ended_as, ending
from kdist.assembly.resuming import NOTHING_LEFT, GoingOn
from kdist.assembly.run_parts import Parts, Place, make_trainer
from kdist.assembly.run_start import find_own, open_folder
from kdist.assembly.signals import EXIT_CODES
from kdist.cluster.task import Task
from kdist.errors import KdistError, PeerLostError
from kdist.records.events import EventLog
from kdist.records.launch_story import LaunchStory
from kdist.records.result import FAILED, write_result
from kdist.records.run_folder import RunFolder
from kdist.training.best import doubt_about_monitor
from kdist.training.checkpoints.folder import CheckpointFolder
from kdist.training.checkpoints.keeper import CheckpointKeeper
from kdist.training.report.console import ConsoleReport
from kdist.training.report.facts import EpochFacts
from kdist.training.report.run_report import RunReport
from kdist.training.saving import save_model
from kdist.training.trainer import Trainer


def run_as_chief(place: Place, parts: Parts) -> int:
    """Train as the chief; return the exit code.

    Raises:
        KdistError: If the folder cannot be used, or training fails.
    """
    request, config = place.request, place.config
    with open_folder(request, config) as folder, contextlib.ExitStack() as refused:
        refused.callback(folder.undo)
        checkpoints = checkpoints_of(config, folder)
        facts = run_facts(request.config_yaml, parts.model, parts.sources, parts.plan)
        warnings: list[str] = []
        saved = find_own(config, checkpoints, attempt=request.attempt, warnings=warnings)
        going_on = saved and GoingOn.check(saved, parts, facts, folder, config)
        if going_on and going_on.is_beyond(parts.plan, folder, checkpoints, config):
            place.cluster.agree(NOTHING_LEFT)
            return 0
        refused.pop_all()
        folder.write_config(request.config_yaml)
        place.link.send("run_folder_ready", run_dir=str(folder.path))
        place.link.send("task_ready")
        with RunReport(
            ConsoleReport(request.console, sys.stdout),
            metrics_csv=folder.metrics_csv,
            tensorboard=folder.tensorboard,
            curves_png=folder.curves_png,
        ) as report:
            events = EventLog(folder.events_jsonl)
            log = contribution_log(place, parts, events, report)
            trainer = make_trainer(
                place,
                parts,
                reporter=report,
                on_epoch=_recorder(place, parts, events, report),
                on_stretch=log.after_stretch,
            )
            warn = report.warnings.append
            keeper = make_keeper(place, parts, trainer, checkpoints, facts, events, warn)
            trainer.keeper = keeper
            chief = _ChiefRun(
                place=place,
                parts=parts,
                folder=folder,
                checkpoints=checkpoints,
                report=report,
                events=events,
                trainer=trainer,
                keeper=keeper,
                log=log,
                going_on=going_on,
                warnings=warnings,
            )
            return chief.run()


@dataclass(kw_only=True)
class _ChiefRun:
    """A run in its folder, from the opening panel to result.json."""

    place: Place
    parts: Parts
    folder: RunFolder
    checkpoints: CheckpointFolder
    report: RunReport
    events: EventLog
    trainer: Trainer
    keeper: CheckpointKeeper
    log: ContributionLog
    going_on: GoingOn | None
    warnings: list[str]
    result: dict[str, Any] = field(default_factory=dict)
    _history: History = field(default_factory=History)

    def run(self) -> int:
        """Train, and write what came of it; return the exit code."""
        place, parts = self.place, self.parts
        if not place.request.is_local:
            self._history = read_history(self.folder.events_jsonl, place.request.task)
            self._record_tasks()
        self._begin()
        self.result = beginning(
            place.config,
            place.traits,
            place.request.spec,
            parts.plan,
            num_replicas=parts.num_replicas,
            warnings=[*parts.sources.notes, *parts.engine.warnings, *self.warnings],
            run_dir=self.folder.path,
        )
        if self.going_on is not None:
            self.result["resumed_from_step"] = self.going_on.state.batches_seen
        with self._recorded_failure():
            state = self.trainer.run()
            self.log.finish()
            save_model(
                parts.model, parts.engine.loop.store, parts.bridge.view, self.folder.model_keras
            )
            self.result |= ended_as(state.stop_reason, self._story().failure)
        self._conclude()
        self.report.closing(self.result)
        return EXIT_CODES.get(self.trainer.state.stop_reason or "", 0)

    def _begin(self) -> None:
        """Let all tasks begin at the checkpoint, if there is one, and show the opening panel."""
        place, parts, going_on = self.place, self.parts, self.going_on
        notes = [*place.request.notes, *parts.notes, *parts.engine.notes, *parts.sources.notes]
        if going_on is not None:
            going_on.let_all_take_it(parts, self.trainer, self.keeper)
            before = going_on.state.batches_seen - going_on.state.step_in_epoch
            self.report.go_on_after(going_on.rows(), before)
            self.events.write(
                "run_resumed",
                step=going_on.state.batches_seen,
                checkpoint=going_on.saved.folder,
                attempt=place.request.attempt,
            )
            notes += going_on.notes()
        place.cluster.agree(going_on.as_decision() if going_on else {"position": None})
        self.report.opening(
            opening_facts(
                place.config,
                place.traits,
                place.request,
                parts.engine,
                parts.sources,
                parts.plan,
                self.folder,
                [*notes, *self.warnings],
                num_replicas=parts.num_replicas,
            )
        )

    def _record_tasks(self) -> None:
        """Write down, in place of a launcher, what happens to the tasks; say what is lost."""
        request = self.place.request

        def record(event: str, task: Task) -> None:
            with contextlib.suppress(KdistError):
                self.events.write(event, task=str(task))
            say(f"{task} {'was lost' if event == 'task_lost' else 'is back'}.")

        for event in ("task_started", "task_ready"):
            for task in request.spec.tasks():
                pid = os.getpid() if task == request.task else None
                self.events.write(event, task=str(task), pid=pid)
        self.place.cluster.listen(record)

    @contextlib.contextmanager
    def _recorded_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.keeper.close()
            task = self.place.request.task
            if not isinstance(error, (*PEER_ERRORS, PeerLostError)):
                with contextlib.suppress(Exception):  # The last counts are worth a try.
                    self.log.finish()
            cause = with_lost_peer(error, task, self.place.cluster)
            self.result["status"] = FAILED
            self.result["error"] = {
                "type": type(cause).__name__,
                "message": str(as_kdist_error(cause)),
                "task": str(task),
            }
            with contextlib.suppress(KdistError):
                self._conclude()
            if cause is error:
                raise
            raise cause from error

    def _story(self) -> LaunchStory:
        """Return what happened to tasks so far: a launcher knows it best."""
        request, history, cluster = self.place.request, self._history, self.place.cluster
        if request.is_local:
            since_s = request.started_at_s
            return launched_story(self.folder.events_jsonl, since_s, attempt=request.attempt)
        return LaunchStory(
            num_restarts=history.num_restarts + cluster.num_rejoined,
            num_workers_lost=history.num_workers_lost + cluster.num_workers_lost,
        )

    def _conclude(self) -> None:
        """Fill in what training came to, and write curves.png and result.json."""
        rule = self.place.config.checkpoint
        story = self._story()
        self.result["restarts"] = story.num_restarts
        self.report.finish(rule.monitor, rule.mode)
        best = self.report.best(rule.monitor, rule.mode)
        self.result |= ending(
            self.trainer.state,
            best=best and {**best, "checkpoint": self.checkpoints.of_epoch(best["epoch"])},
            started_at_s=self.place.request.started_at_s,
            num_workers_lost=story.num_workers_lost,
            warnings=[*self.result["warnings"], *self.report.warnings],
        )
        self.result |= self.log.entries()
        self.result.update(write_result(self.folder.result_json, self.result))
        self.events.write("run_ended", status=self.result["status"])
        self.place.link.send("run_ended", status=self.result["status"])


def _recorder(place: Place, parts: Parts, events: EventLog, report: RunReport) -> Any:
    def record(facts: EpochFacts) -> None:
        place.link.send("progressed", batches_seen=facts.batches_seen)
        events.write(
            "epoch_ended",
            epoch=facts.epoch,
            batches_seen=facts.batches_seen,
            seconds=facts.seconds,
            is_partial=facts.is_partial or None,
        )
        has_validation = parts.sources.validation is not None
        monitor = place.config.checkpoint.monitor
        doubt = doubt_about_monitor(monitor, facts.metrics, has_validation=has_validation)
        if doubt is not None and doubt not in report.warnings:
            report.warnings.append(doubt)
            say(f"Warning: {doubt}")

    return record
