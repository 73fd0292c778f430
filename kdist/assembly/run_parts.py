"""What a training task's run is made of, and how long and by how many it trains."""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kdist.assembly.building import Sources
from kdist.assembly.cluster_link import ClusterLink
from kdist.assembly.engine import Engine
from kdist.assembly.signals import StopSignals
from kdist.cluster.task import TaskType
from kdist.cluster.traits import StrategyTraits
from kdist.config.schema import Config
from kdist.config.update_rules import shares_and_replicas
from kdist.distribute.data import num_steps
from kdist.distribute.shares import WorkerShare
from kdist.launch.request import LauncherLink, TaskRequest
from kdist.training.callback_bridge import CallbackBridge
from kdist.training.plan import TrainingPlan
from kdist.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Place:
    """A training task and what surrounds it: its request, its mode, the others, the launcher."""

    request: TaskRequest
    config: Config
    traits: StrategyTraits
    cluster: ClusterLink
    link: LauncherLink
    signals: StopSignals


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that training needs, built and checked.

    Attributes:
        model: Built and compiled.
        engine: The inner loop and what it was made of.
        bridge: The callbacks.
        plan: How long to train.
        sources: The data.
        num_replicas: Replicas that compute.
        notes: What building it found that the user should know.
    """

    model: keras.Model
    engine: Engine
    bridge: CallbackBridge
    plan: TrainingPlan
    sources: Sources
    num_replicas: int
    notes: tuple[str, ...] = ()


def make_trainer(place: Place, parts: Parts, **options: Any) -> Trainer:
    """Return the outer loop of a task."""
    return Trainer(
        parts.engine.loop,
        parts.bridge,
        parts.plan,
        validation=parts.sources.validation,
        peers=place.cluster,
        stop_requested=place.signals,
        **options,
    )


@dataclass(frozen=True)
class Headcount:
    """How many tasks and devices compute in a run."""

    request: TaskRequest
    config: Config
    traits: StrategyTraits

    @property
    def num_workers(self) -> int:
        """Return the tasks that compute."""
        spec = self.request.spec
        if self.traits.needs_coordinator:
            return spec.num(TaskType.WORKER)
        return sum(task.type in self.traits.trains_on for task in spec.tasks())

    @property
    def num_replicas(self) -> int:
        """Return the replicas that compute."""
        if self.traits.aggregates:
            return shares_and_replicas(self.config.strategy, self.num_workers)[1]
        per_worker = 1 if self.traits.needs_coordinator else max(1, self.request.num_devices)
        return self.num_workers * per_worker

    def share(self, strategy: tf.distribute.Strategy) -> WorkerShare:
        """Return this task's place among the workers of a synchronous mode."""
        spec = self.request.spec
        if self.traits.has_servers or not spec.is_distributed:
            return WorkerShare(replicas_per_worker=strategy.num_replicas_in_sync)
        tasks = [task for task in spec.tasks() if task.type in self.traits.trains_on]
        return WorkerShare(
            worker_index=tasks.index(self.request.task),
            num_workers=len(tasks),
            replicas_per_worker=strategy.num_replicas_in_sync // len(tasks),
        )

    def plan(self, sources: Sources) -> TrainingPlan:
        """Return how long to train on some data.

        Raises:
            ConfigError: If nobody can know how many batches an epoch has.
        """
        config = self.config
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
            replicas_in_flight=1 if self.traits.batch_is_global else self.num_workers,
            validation_batches=config.limit_batches,
            pause_every_steps=config.checkpoint.every_steps,
        )
