"""What trainings on parameter servers have in common: settings, outer loop, what comes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import keras
import numpy as np

from kdist import config as kdist_config
from kdist.assembly.building import Builder, Sources
from kdist.assembly.engine import Engine
from kdist.config.schema import Config
from kdist.distribute.data import num_steps
from kdist.distribute.loops.inner_loop import InnerLoop
from kdist.distribute.shares import WorkerShare
from kdist.training.callback_bridge import CallbackBridge
from kdist.training.peers import Alone
from kdist.training.report.facts import EpochFacts
from kdist.training.trainer import Silent, Trainer, TrainingPlan, TrainingState
from tests.engine.harness import DATA_SETTINGS, Data, numpy_weights

_OF_DATA = ("batch_size", "validation_batch_size", "shuffle", "cache_bytes")


@dataclass(kw_only=True)
class Assembled:
    """A training, and what it came to once `run` has returned."""

    model: keras.Model
    engine: Engine
    bridge: CallbackBridge
    trainer: Trainer
    epochs: list[EpochFacts] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)

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

    def finish(self) -> None:
        """End what has helped to train."""

    def run(self) -> Any:
        """Train to the end; the model then holds the servers' values."""
        self.trainer.run()
        self.finish()
        self.engine.loop.store.write_to_model()
        self.weights = numpy_weights(self.model)
        return self


Kind = TypeVar("Kind", bound=Assembled)


def config_of(settings: dict[str, Any], *, strategy: dict[str, Any], **cluster: Any) -> Config:
    """Return a checked configuration of two epochs, unless told.

    Args:
        settings: Keys of the configuration; those of `data` as they are.
        strategy: Settings of the strategy, to which `settings` may add.
        **cluster: Settings of the cluster.
    """
    of_data = {key: settings.pop(key) for key in _OF_DATA if key in settings}
    return kdist_config.load(
        {
            "data": {**DATA_SETTINGS, **of_data},
            "strategy": {**strategy, **settings.pop("strategy", {})},
            "cluster": cluster,
            "epochs": 2,
            **settings,
        }
    )


def model_and_data(
    config: Config, build: Callable[[], keras.Model], data: Data | Callable[[], Data],
    share: WorkerShare,
) -> tuple[keras.Model, Sources]:  # fmt: skip
    """Return what a task builds of a model function and data, seeded."""
    keras.utils.set_random_seed(0)
    builder = Builder(config, ())
    builder.use({"build_model": build, "make_data": data if callable(data) else lambda: data})
    sources = builder.data(share)
    return builder.model(), sources


def assemble(
    kind: type[Kind],
    config: Config,
    model: keras.Model,
    engine: Engine,
    sources: Sources,
    *,
    callbacks: Sequence[keras.callbacks.Callback],
    replicas_in_flight: int,
    **more: Any,
) -> Kind:
    """Put the outer loop around an engine; `more` are further attributes of that kind."""
    plan = TrainingPlan(
        epochs=config.epochs,
        steps_per_epoch=num_steps(sources.train, config.steps_per_epoch, key="data.train"),
        max_steps=config.max_steps,
        steps_per_call=config.steps_per_execution,
        replicas_in_flight=replicas_in_flight,
    )
    loop: InnerLoop = engine.loop
    bridge = CallbackBridge(
        callbacks,
        model,
        loop.store,
        peers=Alone(),
        epochs=plan.epochs,
        steps_per_epoch=plan.steps_per_epoch,
    )
    epochs: list[EpochFacts] = []
    trainer = Trainer(
        loop,
        bridge,
        plan,
        validation=sources.validation,
        peers=Alone(),
        reporter=Silent(),
        on_epoch=epochs.append,
    )
    return kind(model=model, engine=engine, bridge=bridge, trainer=trainer, epochs=epochs, **more)
