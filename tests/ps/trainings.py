"""Train through the real assembly on a cluster of this machine."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist import config as kdist_config
from kdist.assembly.building import Builder
from kdist.assembly.engine import Engine, make_engine
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import traits_of
from kdist.distribute.coordinator_loop import CoordinatorLoop
from kdist.distribute.data import num_steps
from kdist.distribute.shares import WorkerShare
from kdist.distribute.strategies import make_strategy, start_server
from kdist.training.callback_bridge import CallbackBridge
from kdist.training.peers import Alone
from kdist.training.report.facts import EpochFacts
from kdist.training.trainer import Silent, Trainer, TrainingPlan, TrainingState
from tests.engine.harness import Data, numpy_weights

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


@dataclass(kw_only=True)
class PsRun:
    """A training on parameter servers, and what it came to once `run` has returned."""

    model: keras.Model
    engine: Engine
    bridge: CallbackBridge
    trainer: Trainer
    epochs: list[EpochFacts] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)

    @property
    def loop(self) -> CoordinatorLoop:
        """Return the inner loop."""
        loop = self.engine.loop
        assert isinstance(loop, CoordinatorLoop)
        return loop

    @property
    def state(self) -> TrainingState:
        """Return the counts."""
        return self.trainer.state

    @property
    def history(self) -> dict[str, list[float]]:
        """Return what Keras would call the history."""
        history: dict[str, list[float]] = {}
        for facts in self.epochs:
            for key, value in facts.metrics.items():
                history.setdefault(key, []).append(value)
        return history

    def run(self) -> "PsRun":
        """Train to the end; the model then holds the servers' values."""
        self.trainer.run()
        self.loop.store.write_to_model()
        self.weights = numpy_weights(self.model)
        return self


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
        keras.utils.set_random_seed(0)
        of_data = {"batch_size": 8, "shuffle": False}
        for key in ("batch_size", "validation_batch_size", "shuffle", "cache_bytes"):
            if key in settings:
                of_data[key] = settings.pop(key)
        config = kdist_config.load(
            {
                "data": of_data,
                "strategy": {"name": "ps", **settings.pop("strategy", {})},
                "cluster": {"workers": workers, "ps": ps},
                "epochs": 2,
                **settings,
            }
        )
        builder = Builder(config, ())
        builder.use({"build_model": build, "make_data": lambda: data})
        sources = builder.data(WorkerShare())
        model = builder.model()
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
        )
        plan = TrainingPlan(
            epochs=config.epochs,
            steps_per_epoch=num_steps(sources.train, config.steps_per_epoch, key="data.train"),
            max_steps=config.max_steps,
            steps_per_call=config.steps_per_execution,
            replicas_in_flight=1 if traits.batch_is_global else workers,
        )
        bridge = CallbackBridge(
            callbacks,
            model,
            engine.loop.store,
            peers=Alone(),
            epochs=plan.epochs,
            steps_per_epoch=plan.steps_per_epoch,
        )
        epochs: list[EpochFacts] = []
        trainer = Trainer(
            engine.loop,
            bridge,
            plan,
            validation=sources.validation,
            peers=Alone(),
            reporter=Silent(),
            on_epoch=epochs.append,
        )
        return PsRun(model=model, engine=engine, bridge=bridge, trainer=trainer, epochs=epochs)

    def train(self, build: Callable[[], keras.Model], data: Data, **options: Any) -> PsRun:
        """Train with kdist (2 epochs unless told); see `prepare` for the arguments."""
        return self.prepare(build, data, **options).run()


def start_servers(spec: ClusterSpec) -> list[tf.distribute.Server]:
    """Start the servers of all workers and parameter servers in this process."""
    hosts = [task for task in spec.tasks() if task.type is not TaskType.CHIEF]
    return [start_server(spec, task) for task in hosts]
