"""One training task's run: build and check everything, then train, as the chief or as a peer."""

import pickle
import sys
from pathlib import Path

import keras

from kdist.assembly.building import Builder
from kdist.assembly.chief_run import run_as_chief
from kdist.assembly.client import Client
from kdist.assembly.cluster_link import ClusterLink
from kdist.assembly.engine import make_engine
from kdist.assembly.peer_link import PeerLink
from kdist.assembly.resuming import follow
from kdist.assembly.run_parts import Headcount, Parts, Place, make_trainer
from kdist.assembly.run_start import wish_of
from kdist.assembly.same_data import refuse_other_data
from kdist.assembly.signals import EXIT_CODES, StopSignals
from kdist.cluster.task import TaskType
from kdist.cluster.traits import StrategyTraits
from kdist.config.schema import Config
from kdist.distribute.data import check_enough_examples
from kdist.distribute.strategies import make_strategy
from kdist.launch.request import LauncherLink, TaskRequest
from kdist.records.resumption import Start, decide, finished_text
from kdist.training.callback_bridge import CallbackBridge
from kdist.training.saving import check_can_be_saved, start_from
from kdist.training.trainer import Silent


class TrainingRun:
    """Runs on the chief and, in modes whose workers run the loop themselves, on all of them."""

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
        self._place = Place(
            request=request,
            config=config,
            traits=traits,
            cluster=cluster,
            link=link,
            signals=signals,
        )
        self._count = Headcount(request, config, traits)
        self._builder = Builder(config, request.typed_keys)

    def run(self) -> int:
        """Train; return the exit code.

        Raises:
            KdistError: If the configuration is wrong or training fails.
        """
        if self._is_finished():
            return 0
        client = None
        if self._traits.has_followers:
            client = Client(self._request, self._config, self._traits)
        parts = self._build(client)
        if client is not None and self._is_follower:
            return client.follow(
                self._cluster, self._signals, on_ready=lambda: self._link.send("task_ready")
            )
        if not self._cluster.is_chief:
            return self._train_as_peer(parts)
        self._signals.begin()
        try:
            return run_as_chief(self._place, parts)
        finally:
            if client is not None:
                client.close()

    def _is_finished(self) -> bool:
        """Return whether the run folder holds this run, finished: the chief looks, all agree.

        Raises:
            ConfigError: If the folder holds a run that must not go on.
        """
        is_finished = False
        if self._cluster.is_chief:
            is_finished = decide(wish_of(self._request, self._config)) is Start.FINISHED
            if is_finished:
                sys.stdout.write(finished_text(Path(self._request.run_dir)) + "\n")
        if not self._traits.has_peers:
            if is_finished:
                self._cluster.leave(0, has_ended=False)  # Followers have nothing to wait for.
            return is_finished
        return bool(self._cluster.agree({"is_finished": is_finished})["is_finished"])

    def _build(self, client: Client | None) -> Parts:
        request, config, traits, count = self._request, self._config, self._traits, self._count
        strategy = make_strategy(
            traits,
            request.spec,
            request.task,
            num_devices=max(1, request.num_devices),
            collective=config.strategy.collective,
        )
        self._signals.install()  # TensorFlow's coordination service has taken SIGTERM.
        share = count.share(strategy)
        if client is not None:
            client.serve()
        if request.objects is not None:  # Only now: they may create variables.
            self._builder.use(pickle.loads(request.objects))
        sources = self._builder.data(
            client.share if client else share, batch_is_global=self._traits.batch_is_global
        )
        check_enough_examples(sources.train, count.num_workers, key="data.train")
        plan = count.plan(sources)
        if share.num_workers > 1:
            task, chief = request.task, request.spec.chief
            refuse_other_data(sources, plan, self._cluster, task=task, chief=chief)
        model = self._builder.model(has_values_from_chief=self._is_follower)
        callbacks = self._builder.callbacks() if self._cluster.is_chief else []
        engine = make_engine(
            config,
            traits,
            strategy,
            model,
            sources.train,
            share=share,
            num_servers=request.spec.num(TaskType.PS),
            num_workers=count.num_workers,
            check_cluster=self._cluster.check,
            after_build=self._warm_start,
            make_client_loop=client and client.loop_maker(sources, plan, self._cluster),
            validation=sources.validation,
        )
        check_can_be_saved(model)  # In every task, so that all end by themselves.
        bridge = CallbackBridge(
            callbacks,
            model,
            engine.loop.store,
            peers=self._cluster,
            epochs=plan.epochs,
            steps_per_epoch=plan.steps_per_epoch,
        )
        return Parts(
            model=model,
            engine=engine,
            bridge=bridge,
            plan=plan,
            sources=sources,
            num_replicas=count.num_replicas,
            notes=tuple(self._builder.notes),
        )

    @property
    def _is_follower(self) -> bool:
        return self._traits.has_followers and not self._cluster.is_chief

    def _train_as_peer(self, parts: Parts) -> int:
        assert isinstance(self._cluster, PeerLink)
        self._signals.begin(self._cluster.ask_to_stop)
        self._link.send("task_ready")
        trainer = make_trainer(self._place, parts, reporter=Silent())
        if not follow(parts, trainer, self._cluster):
            return 0
        state = trainer.run()
        return EXIT_CODES.get(state.stop_reason or "", 0)

    def _warm_start(self, model: keras.Model) -> None:
        """Read first weights on the chief, whose values every worker's store begins with."""
        if self._config.init_from is not None and self._cluster.is_chief:
            start_from(model, Path(self._config.init_from))
