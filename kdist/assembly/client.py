"""Between-graph replication in a task: its own server, its own loop, and how it compares itself."""

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from kdist.assembly.building import Sources
from kdist.assembly.chief_link import ChiefLink
from kdist.assembly.cluster_link import ClusterLink
from kdist.assembly.peer_link import PeerLink
from kdist.assembly.same_data import data_facts, refuse_other_facts
from kdist.assembly.signals import EXIT_CODES, StopSignals
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import StrategyTraits
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
from kdist.distribute.strategies import start_server
from kdist.launch.request import TaskRequest
from kdist.training.trainer import TrainingPlan


class _RunEnded(Exception):
    """The chief has ended the run, and well, while this task was on its way to follow it."""


def _check(cluster: ClusterLink) -> None:
    cluster.check()
    if isinstance(cluster, PeerLink) and cluster.has_ended:
        raise _RunEnded


class Client:
    """One training task that is a client of the parameter servers by itself."""

    def __init__(self, request: TaskRequest, config: Config, traits: StrategyTraits):
        """Find this task's place; `serve` comes first."""
        self._request = request
        self._traits = traits
        self._config = config
        tasks = [t for t in request.spec.tasks() if t.type in traits.trains_on]
        self._names = [str(task) for task in tasks]
        self.share = WorkerShare(worker_index=tasks.index(request.task), num_workers=len(tasks))
        self._server: Any = None
        self._loop: BetweenGraphLoop | None = None
        self._facts: Mapping[str, Any] = {}

    def serve(self) -> None:
        """Start this task's TensorFlow server, which runs its share of every session."""
        self._server = start_server(
            self._request.spec,
            self._request.task,
            accelerators=self._request.accelerators,
            serves_calls=False,
        )

    def loop_maker(
        self, sources: Sources, plan: TrainingPlan, cluster: ClusterLink
    ) -> Callable[[ModelStructure, BucketLayout], InnerLoop]:
        """Return what makes this task's loop; the chief's is ready to train then."""
        spec, config = self._request.spec, self._config
        self._facts = data_facts(sources, plan)

        def make(structure: ModelStructure, layout: BucketLayout) -> InnerLoop:
            task = self._request.task
            has_accelerator = bool(tf.config.list_logical_devices("GPU"))
            shares = None
            if self._traits.aggregates:
                counts = shares_and_replicas(config.strategy, self.share.num_workers)
                shares = Shares(*counts, batch_size=config.data.batch_size)
            graph = WorkerGraph(
                structure,
                layout,
                Seat(
                    share=self.share,
                    target=self._server.target,
                    servers={
                        f"ps-{index}": spec.address(Task(TaskType.PS, index))
                        for index in range(spec.num(TaskType.PS))
                    },
                    device=f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0",
                    compute_device="/device:GPU:0" if has_accelerator else None,
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
            self._loop = make_loop(
                worker,
                check_cluster=lambda: _check(cluster),
                losses=lambda: self._losses(cluster),
                start_timeout_s=config.cluster.start_timeout_s,
                names=self._names.__getitem__,
            )
            self._facts = {**self._facts, "variables on the servers": graph.signature}
            if cluster.is_chief:
                self._loop.begin(json.dumps(dict(self._facts)))
            return self._loop

        return make

    def follow(
        self, cluster: ClusterLink, signals: StopSignals, on_ready: Callable[[], None]
    ) -> int:
        """Compute what the chief opens, until it closes; return the exit code.

        Raises:
            ConfigError: If this task reads other data than the chief.
        """
        assert self._loop is not None and isinstance(cluster, PeerLink)
        signals.begin(cluster.ask_to_stop)
        task, chief = self._request.task, self._request.spec.chief
        with contextlib.suppress(_RunEnded):
            self._loop.follow(
                str(chief),
                compare=lambda notes: refuse_other_facts(
                    self._facts, json.loads(notes), task=task, chief=chief
                ),
                on_ready=on_ready,
            )
        return EXIT_CODES.get(signals.reason or "", 0)

    def _losses(self, cluster: ClusterLink) -> list[int]:
        """Return the positions of workers that were lost, once for each loss."""
        if not isinstance(cluster, ChiefLink):
            return []
        lost = map(str, cluster.losses)
        return [self._names.index(name) for name in lost if name in self._names]

    def close(self) -> None:
        """Let the followers go, however the chief's training ended."""
        if self._loop is not None:
            self._loop.close()
