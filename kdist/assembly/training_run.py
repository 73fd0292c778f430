"""One training task's run: build, check, make the run folder, train, write what came of it."""

import contextlib
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kdist.assembly.building import Builder, Sources
from kdist.assembly.client import Client
from kdist.assembly.cluster_link import ClusterLink, say
from kdist.assembly.engine import Engine, make_engine
from kdist.assembly.facts import opening_facts
from kdist.assembly.failures import as_kdist_error, with_lost_peer
from kdist.assembly.result_content import beginning, ending
from kdist.assembly.same_data import refuse_other_data
from kdist.assembly.signals import EXIT_CODES, StopSignals
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import StrategyTraits
from kdist.config.schema import Config
from kdist.config.update_rules import shares_and_replicas
from kdist.distribute.data import check_enough_examples, num_steps
from kdist.distribute.shares import WorkerShare
from kdist.distribute.strategies import make_strategy
from kdist.errors import KdistError
from kdist.launch.request import LauncherLink, TaskRequest
from kdist.records.events import EventLog
from kdist.records.result import COMPLETED, FAILED, STOPPED, write_result
from kdist.records.run_folder import RunFolder
from kdist.training.callback_bridge import CallbackBridge
from kdist.training.report.console import ConsoleReport
from kdist.training.report.facts import EpochFacts
from kdist.training.report.run_report import RunReport
from kdist.training.saving import save_model, start_from
from kdist.training.trainer import Silent, Trainer, TrainingPlan, TrainingState


class TrainingRun:
    """Runs on the chief and, in synchronous multi-worker modes, on every worker alike."""

    def __init__(
        self,
        request: TaskRequest,
        config: Config,
        traits: StrategyTraits,
        cluster: ClusterLink,
        link: LauncherLink,
        signals: StopSignals,
    ):
        """Hold the parts; `run` does the work."""
        self._request = request
        self._config = config
        self._traits = traits
        self._cluster = cluster
        self._link = link
        self._signals = signals
        self._spec = request.spec
        self._builder = Builder(config, request.typed_keys)

    def run(self) -> int:
        """Train; return the exit code.

        Raises:
            KdistError: If the configuration is wrong or training fails.
        """
        strategy = make_strategy(
            self._traits,
            self._spec,
            self._request.task,
            num_devices=max(1, self._request.num_devices),
            collective=self._config.strategy.collective,
        )
        self._signals.install()  # TensorFlow's coordination service has taken SIGTERM.
        share = self._share(strategy)
        client = None
        if self._traits.has_followers:
            client = Client(self._request, self._config, self._traits)
            client.serve()
        if self._request.objects is not None:  # Only now: they may create variables.
            self._builder.use(pickle.loads(self._request.objects))
        sources = self._builder.data(client.share if client else share)
        check_enough_examples(sources.train, self._num_workers, key="data.train")
        plan = self._plan(sources)
        if share.num_workers > 1:
            task, chief = self._request.task, self._spec.chief
            refuse_other_data(sources, plan, self._cluster, task=task, chief=chief)
        model = self._builder.model()
        callbacks = self._builder.callbacks() if self._cluster.is_chief else []
        engine = make_engine(
            self._config,
            self._traits,
            strategy,
            model,
            sources.train,
            share=share,
            num_servers=self._spec.num(TaskType.PS),
            num_workers=self._num_workers,
            check_cluster=self._cluster.check,
            after_build=self._warm_start,
            make_client_loop=client and client.loop_maker(sources, plan, self._cluster),
        )
        if client is not None and not self._cluster.is_chief:
            return client.follow(
                self._cluster, self._signals, on_ready=lambda: self._link.send("task_ready")
            )
        bridge = CallbackBridge(
            callbacks,
            model,
            engine.loop.store,
            peers=self._cluster,
            epochs=plan.epochs,
            steps_per_epoch=plan.steps_per_epoch,
        )
        self._signals.begin()
        if not self._cluster.is_chief:
            self._link.send("task_ready")
            trainer = self._trainer(engine, bridge, plan, sources, reporter=Silent())
            state = trainer.run()
            return EXIT_CODES.get(state.stop_reason or "", 0)
        try:
            return self._run_as_chief(model, engine, bridge, plan, sources)
        finally:
            if client is not None:
                client.close()

    def _run_as_chief(
        self,
        model: keras.Model,
        engine: Engine,
        bridge: CallbackBridge,
        plan: TrainingPlan,
        sources: Sources,
    ) -> int:
        request = self._request
        with RunFolder.create(
            request.run_dir, request.config_yaml, make_unique=request.may_rename_run_dir
        ) as folder:
            self._link.send("run_folder_ready", run_dir=str(folder.path))
            self._link.send("task_ready")
            events = EventLog(folder.events_jsonl)
            if not request.is_local:
                self._record_tasks(events)
            console = ConsoleReport(request.console, sys.stdout)
            with RunReport(
                console,
                metrics_csv=folder.metrics_csv,
                tensorboard=folder.tensorboard,
                curves_png=folder.curves_png,
            ) as report:
                notes = (*request.notes, *self._builder.notes, *engine.notes, *sources.notes)
                report.opening(
                    opening_facts(
                        self._config,
                        self._traits,
                        request,
                        engine,
                        sources,
                        plan,
                        folder,
                        notes,
                        num_replicas=self._num_replicas,
                    )
                )
                trainer = self._trainer(
                    engine,
                    bridge,
                    plan,
                    sources,
                    reporter=report,
                    on_epoch=_recorder(events, self._link),
                )
                result = beginning(
                    self._config,
                    self._traits,
                    self._spec,
                    plan,
                    num_replicas=self._num_replicas,
                    warnings=sources.notes,
                    run_dir=folder.path,
                )
                with self._recorded_failure(result, trainer, report, folder, events):
                    state = trainer.run()
                    save_model(model, engine.loop.store, bridge.view, folder.model_keras)
                    result["status"] = COMPLETED if state.stop_reason is None else STOPPED
                self._conclude(result, trainer.state, report, folder, events)
                report.closing(result)
        return EXIT_CODES.get(trainer.state.stop_reason or "", 0)

    def _record_tasks(self, events: EventLog) -> None:
        """Write down, in place of a launcher, what happens to the tasks; say what is lost."""

        def record(event: str, task: Task) -> None:
            with contextlib.suppress(KdistError):
                events.write(event, task=str(task))
            say(f"{task} {'was lost' if event == 'task_lost' else 'is back'}.")

        for event in ("task_started", "task_ready"):
            for task in self._spec.tasks():
                pid = os.getpid() if task == self._request.task else None
                events.write(event, task=str(task), pid=pid)
        self._cluster.listen(record)

    @contextlib.contextmanager
    def _recorded_failure(
        self,
        result: dict[str, Any],
        trainer: Trainer,
        report: RunReport,
        folder: RunFolder,
        events: EventLog,
    ) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            cause = with_lost_peer(error, self._request.task, self._cluster)
            result["status"] = FAILED
            result["error"] = {
                "type": type(cause).__name__,
                "message": str(as_kdist_error(cause)),
                "task": str(self._request.task),
            }
            with contextlib.suppress(KdistError):
                self._conclude(result, trainer.state, report, folder, events)
            if cause is error:
                raise
            raise cause from error

    def _conclude(
        self,
        result: dict[str, Any],
        state: TrainingState,
        report: RunReport,
        folder: RunFolder,
        events: EventLog,
    ) -> None:
        """Fill in what training came to, and write curves.png and result.json."""
        report.finish()
        result |= ending(
            state,
            best=report.best(),
            started_at_s=self._request.started_at_s,
            num_workers_lost=self._cluster.num_workers_lost,
            warnings=[*result["warnings"], *report.warnings],
        )
        result.update(write_result(folder.result_json, result))
        events.write("run_ended", status=result["status"])
        self._link.send("run_ended", status=result["status"])

    def _trainer(
        self,
        engine: Engine,
        bridge: CallbackBridge,
        plan: TrainingPlan,
        sources: Sources,
        **options: Any,
    ) -> Trainer:
        return Trainer(
            engine.loop,
            bridge,
            plan,
            validation=sources.validation,
            peers=self._cluster,
            stop_requested=self._signals,
            **options,
        )

    def _plan(self, sources: Sources) -> TrainingPlan:
        config = self._config
        steps = num_steps(
            sources.train, config.steps_per_epoch or config.limit_batches, key="data.train"
        )
        if config.limit_batches is not None:
            known = config.steps_per_epoch or sources.train.batches_per_pass or steps
            steps = min(known, config.limit_batches)
        return TrainingPlan(
            epochs=config.epochs,
            steps_per_epoch=steps,
            max_steps=config.max_steps,
            steps_per_call=config.steps_per_execution,
            replicas_in_flight=1 if self._traits.batch_is_global else self._num_workers,
            validation_batches=config.limit_batches,
        )

    def _share(self, strategy: tf.distribute.Strategy) -> WorkerShare:
        if self._traits.has_servers or not self._spec.is_distributed:
            return WorkerShare(replicas_per_worker=strategy.num_replicas_in_sync)
        tasks = [t for t in self._spec.tasks() if t.type in self._traits.trains_on]
        return WorkerShare(
            worker_index=tasks.index(self._request.task),
            num_workers=len(tasks),
            replicas_per_worker=strategy.num_replicas_in_sync // len(tasks),
        )

    @property
    def _num_workers(self) -> int:
        if self._traits.needs_coordinator:
            return self._spec.num(TaskType.WORKER)
        return sum(task.type in self._traits.trains_on for task in self._spec.tasks())

    @property
    def _num_replicas(self) -> int:
        if self._traits.aggregates:
            return shares_and_replicas(self._config.strategy, self._num_workers)[1]
        per_worker = 1 if self._traits.needs_coordinator else max(1, self._request.num_devices)
        return self._num_workers * per_worker

    def _warm_start(self, model: keras.Model) -> None:
        """Read first weights on the chief, whose values every worker's store begins with."""
        if self._config.init_from is not None and self._cluster.is_chief:
            start_from(model, Path(self._config.init_from))


def _recorder(events: EventLog, link: LauncherLink) -> Any:
    def record(facts: EpochFacts) -> None:
        link.send("progressed", batches_seen=facts.batches_seen)
        events.write(
            "epoch_ended", epoch=facts.epoch, batches_seen=facts.batches_seen, seconds=facts.seconds
        )

    return record
