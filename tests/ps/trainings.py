"""Train through the real assembly on a cluster of this machine."""

import functools
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kdist.assembly.engine import make_engine
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import traits_of
from kdist.distribute.loops.coordinator_loop import CoordinatorLoop
from kdist.distribute.shares import WorkerShare
from kdist.distribute.strategies import make_strategy, start_server
from tests.engine.harness import Data
from tests.ps.assembled import Assembled, assemble, config_of, model_and_data

TRAITS = traits_of("ps", "in_graph", "async")


def free_spec(num_workers: int, num_ps: int) -> ClusterSpec:
    """Return a cluster on free ports of this machine."""
    counts = {TaskType.CHIEF: 1, TaskType.WORKER: num_workers, TaskType.PS: num_ps}
    sockets = {
        kind: [socket.create_server(("127.0.0.1", 0)) for _ in range(num)]
        for kind, num in counts.items()
    }
    addresses = {
        kind: tuple(f"127.0.0.1:{held.getsockname()[1]}" for held in holders)
        for kind, holders in sockets.items()
    }
    for holders in sockets.values():
        for held in holders:
            held.close()
    return ClusterSpec(addresses)


class PsRun(Assembled):
    """A training that this process coordinates."""

    @property
    def loop(self) -> CoordinatorLoop:
        """Return the inner loop."""
        loop = self.engine.loop
        assert isinstance(loop, CoordinatorLoop)
        return loop


class Trainings:
    """Connects to a cluster, and hands out trainings on a part of its workers."""

    def __init__(self, spec: ClusterSpec):
        """Connect to servers that run or will run; call it once, before anything else runs."""
        self._connected = make_strategy(
            TRAITS, spec, Task(TaskType.CHIEF, 0), num_devices=1, collective="auto"
        )
        self._strategies: dict[int, tf.distribute.Strategy] = {}

    def strategy(self, num_workers: int) -> tf.distribute.Strategy:
        """Return a strategy that schedules on the first workers only."""
        if num_workers not in self._strategies:
            strategy = object.__new__(type(self._connected))
            strategy.__dict__.update(self._connected.__dict__)
            strategy._num_workers = num_workers
            strategy._cluster_coordinator = None
            self._strategies[num_workers] = strategy
        return self._strategies[num_workers]

    def prepare(
        self,
        build: Callable[[], keras.Model],
        data: Data,
        *,
        workers: int = 1,
        ps: int = 2,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        **settings: Any,
    ) -> PsRun:
        """Make everything that training needs, seeded; nothing is trained yet.

        Args:
            build: Returns a compiled model.
            data: `{"train": part, "validation": part}`.
            workers: Workers that push.
            ps: Servers that hold the store.
            callbacks: Of Keras.
            **settings: Keys of the configuration; those of `data` as they are.
        """
        config = config_of(settings, strategy={"name": "ps"}, workers=workers, ps=ps)
        model, sources = model_and_data(config, build, data, WorkerShare())
        traits = traits_of("ps", config.strategy.replication, config.strategy.update)
        engine = make_engine(
            config,
            traits,
            self.strategy(workers),
            model,
            sources.train,
            share=WorkerShare(),
            num_servers=ps,
            num_workers=workers,
            check_cluster=lambda: None,
            validation=sources.validation,
        )
        return assemble(
            PsRun,
            config,
            model,
            engine,
            sources,
            callbacks=callbacks,
            replicas_in_flight=1 if traits.batch_is_global else workers,
        )

    def train(self, build: Callable[[], keras.Model], data: Data, **options: Any) -> PsRun:
        """Train with kdist (2 epochs unless told); see `prepare` for the arguments."""
        return self.prepare(build, data, **options).run()


def start_servers(spec: ClusterSpec) -> list[tf.distribute.Server]:
    """Start the servers of all workers and parameter servers in this process."""
    hosts = [task for task in spec.tasks() if task.type is not TaskType.CHIEF]
    return [start_server(spec, task) for task in hosts]


@dataclass(frozen=True, kw_only=True)
class OwnCluster:
    """The one cluster that this process holds: three workers, two parameter servers.

    Attributes:
        spec: Its addresses.
        servers: Of its workers and parameter servers, in the order of the specification.
        trainings: That this process coordinates.
    """

    spec: ClusterSpec
    servers: Sequence[tf.distribute.Server]
    trainings: Trainings


@functools.cache
def own_cluster() -> OwnCluster:
    """Start the servers, once, and connect to them, before any model is made."""
    spec = free_spec(num_workers=3, num_ps=2)
    servers = start_servers(spec)
    return OwnCluster(spec=spec, servers=servers, trainings=Trainings(spec))
