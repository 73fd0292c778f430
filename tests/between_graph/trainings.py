"""Train through the real assembly with several clients in this process, one thread each."""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from kdist.assembly.building import Sources
from kdist.assembly.engine import Engine, make_engine
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import traits_of
from kdist.config.schema import Config
from kdist.config.update_rules import shares_and_replicas
from kdist.distribute.between_graph.aggregating_loop import AggregatingClientLoop
from kdist.distribute.between_graph.graph import WorkerGraph
from kdist.distribute.between_graph.loop import BetweenGraphLoop
from kdist.distribute.between_graph.seat import Seat
from kdist.distribute.between_graph.turns import Shares
from kdist.distribute.between_graph.worker import StepWorker
from kdist.distribute.buckets.layout import BucketLayout
from kdist.distribute.loops.inner_loop import InnerLoop
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.shares import WorkerShare
from kdist.distribute.strategies import make_strategy
from tests.engine.harness import Data
from tests.ps.assembled import Assembled, assemble, config_of, model_and_data
from tests.ps.trainings import OwnCluster

_containers = itertools.count()


@dataclass(kw_only=True)
class ClientRun(Assembled):
    """A training by several clients, one of which is the chief."""

    followers: list[BetweenGraphLoop]
    ids_of_followers: list[int] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _errors: list[BaseException] = field(default_factory=list)

    @property
    def loop(self) -> BetweenGraphLoop:
        """Return the chief's loop."""
        loop = self.engine.loop
        assert isinstance(loop, BetweenGraphLoop)
        return loop

    def start_follower(self, follower: BetweenGraphLoop) -> None:
        """Let one more client take steps, on a thread of its own."""

        def follow() -> None:
            try:
                self.ids_of_followers.append(
                    follower.follow("worker-0", compare=lambda notes: None, on_ready=lambda: None)
                )
            except BaseException as error:
                self._errors.append(error)
                raise

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        self._threads.append(thread)

    def run(self) -> "ClientRun":
        """Train to the end; the model then holds the servers' values."""
        for follower in self.followers:
            self.start_follower(follower)
        return super().run()

    def finish(self) -> None:
        """Let the followers go."""
        self.loop.close()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        assert not self._errors


class Trainings:
    """Hands out trainings on the servers of one cluster."""

    def __init__(self, cluster: OwnCluster):
        """Remember who serves where; the clients' cluster has no chief."""
        addresses = cluster.spec.addresses
        self._spec = ClusterSpec({k: a for k, a in addresses.items() if k is not TaskType.CHIEF})
        self._targets = {
            task: server.target
            for task, server in zip(self._spec.tasks(), cluster.servers, strict=True)
        }

    def prepare(
        self,
        build: Callable[[], keras.Model],
        data: Data | Callable[[], Data],
        *,
        workers: int = 1,
        ps: int = 2,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        losses: Callable[[], Sequence[int]] = tuple,
        **settings: Any,
    ) -> ClientRun:
        """Make everything that training needs, seeded; nothing is trained yet.

        Args:
            build: Returns a compiled model.
            data: `{"train": part, "validation": part}`.
            workers: Clients that push; the first is the chief.
            ps: Servers that hold the store.
            callbacks: Of Keras.
            losses: What the chief hears of losses: indices of workers.
            **settings: Keys of the configuration; those of `data` as they are.
        """
        container = f"test-{next(_containers)}"
        config = config_of(
            settings,
            strategy={"name": "ps", "replication": "between_graph"},
            workers=workers,
            ps=ps,
            start_timeout_s=30,
        )
        made = [
            self._make(config, build, data, index, workers, ps, container, losses)
            for index in range(workers)
        ]
        model, engine, sources = made[0]
        assert isinstance(engine.loop, BetweenGraphLoop)
        engine.loop.begin("")
        followers = [other.loop for _, other, _ in made[1:]]
        return assemble(
            ClientRun,
            config,
            model,
            engine,
            sources,
            callbacks=callbacks,
            replicas_in_flight=workers,
            followers=[loop for loop in followers if isinstance(loop, BetweenGraphLoop)],
        )

    def train(self, build: Callable[[], keras.Model], data: Any, **options: Any) -> ClientRun:
        """Train with kdist (2 epochs unless told); see `prepare` for the arguments."""
        return self.prepare(build, data, **options).run()

    def _make(
        self,
        config: Config,
        build: Callable[[], keras.Model],
        data: Any,
        index: int,
        workers: int,
        ps: int,
        container: str,
        losses: Callable[[], Sequence[int]],
    ) -> tuple[keras.Model, Engine, Sources]:
        """Do what one client's process would do before it trains."""
        task = Task(TaskType.WORKER, index)
        share = WorkerShare(worker_index=index, num_workers=workers)
        model, sources = model_and_data(config, build, data, share)
        traits = traits_of("ps", "between_graph", config.strategy.update)
        shares = None
        if traits.aggregates:
            counts = shares_and_replicas(config.strategy, workers)
            shares = Shares(*counts, batch_size=config.data.batch_size)

        def make_loop(structure: ModelStructure, layout: BucketLayout) -> InnerLoop:
            graph = WorkerGraph(
                structure,
                layout,
                Seat(
                    share=share,
                    target=self._targets[task],
                    servers={"ps-0": self._spec.address(Task(TaskType.PS, 0))},
                    device=f"/job:worker/replica:0/task:{index}/device:CPU:0",
                    container=container,
                ),
                source=sources.train,
                validation=sources.validation,
                steps_per_call=config.steps_per_execution,
                jit_compile=config.jit_compile,
                max_staleness=config.strategy.max_staleness,
                shares=shares,
            )
            worker = StepWorker(graph)
            make_loop = AggregatingClientLoop if shares else BetweenGraphLoop
            return make_loop(worker, losses=losses, start_timeout_s=30)

        engine = make_engine(
            config,
            traits,
            make_strategy(traits, self._spec, task, num_devices=1, collective="auto"),
            model,
            sources.train,
            share=WorkerShare(),
            num_servers=ps,
            num_workers=workers,
            check_cluster=lambda: None,
            make_client_loop=make_loop,
            validation=sources.validation,
        )
        return model, engine, sources
