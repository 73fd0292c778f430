"""Train one model through the real assembly, or with plain Keras, on the same rows."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kdist import config as kdist_config
from kdist.assembly.building import Builder
from kdist.assembly.engine import Engine, make_engine
from kdist.cluster.traits import traits_of
from kdist.distribute.data import num_steps
from kdist.distribute.shares import WorkerShare
from kdist.training.callback_bridge import CallbackBridge
from kdist.training.peers import Alone
from kdist.training.trainer import Silent, Trainer, TrainingPlan

TOLERANCE = 1e-5
DATA_SETTINGS = {"batch_size": 8, "shuffle": False}
Data = Mapping[str, Any]


@dataclass(kw_only=True)
class Outcome:
    """What a training came to."""

    model: keras.Model
    weights: list[np.ndarray]
    history: dict[str, list[float]]
    engine: Engine | None = None
    bridge: CallbackBridge | None = None
    trainer: Trainer | None = None


@functools.cache
def strategy_of(replicas: int) -> tf.distribute.Strategy:
    """Return the strategy of `single` (1) or `mirrored` (more) over this process's CPUs.

    Strategies of different sizes in one process must not share the keys of collectives.
    """
    if replicas == 1:
        return tf.distribute.get_strategy()
    keys = {"_collective_key_base": replicas * 1_000_000}
    mirrored = type("KeyedMirroredStrategy", (tf.distribute.MirroredStrategy,), keys)
    return mirrored([f"CPU:{index}" for index in range(replicas)])


def prepare(
    build: Callable[[], keras.Model],
    data: Data,
    *,
    replicas: int = 1,
    placed: tuple[tf.distribute.Strategy, WorkerShare] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    **settings: Any,
) -> Outcome:
    """Make everything that training needs, seeded alike in every mode; nothing is trained yet.

    Args:
        build: Returns a compiled model.
        data: `{"train": part, "validation": part}`.
        replicas: 1 is `single`, more is `mirrored`.
        placed: The strategy and this worker's share: `multiworker`.
        callbacks: Of Keras.
        **settings: Keys of the configuration; batch sizes and `shuffle` are those of `data`.
    """
    keras.utils.set_random_seed(0)
    of_data = {
        key: settings.pop(key)
        for key in ("batch_size", "validation_batch_size", "shuffle")
        if key in settings
    }
    of_data = {**DATA_SETTINGS, **of_data}
    name = "multiworker" if placed else "single" if replicas == 1 else "mirrored"
    strategy_settings = {"name": name, **settings.pop("strategy", {})}
    config = kdist_config.load({"data": of_data, "strategy": strategy_settings, **settings})
    strategy, share = placed or (
        strategy_of(replicas),
        WorkerShare(replicas_per_worker=replicas),
    )
    builder = Builder(config, ())
    builder.use({"build_model": build, "make_data": lambda: data})
    sources = builder.data(share)
    model = builder.model()
    engine = make_engine(
        config,
        traits_of(name, config.strategy.replication, config.strategy.update),
        strategy,
        model,
        sources.train,
        share=share,
        num_servers=0,
        num_workers=share.num_workers,
        check_cluster=lambda: None,
        validation=sources.validation,
    )
    steps = num_steps(sources.train, config.steps_per_epoch, key="data.train")
    plan = TrainingPlan(
        epochs=config.epochs,
        steps_per_epoch=steps,
        max_steps=config.max_steps,
        steps_per_call=config.steps_per_execution,
    )
    bridge = CallbackBridge(
        callbacks,
        model,
        engine.loop.store,
        peers=Alone(),
        epochs=plan.epochs,
        steps_per_epoch=plan.steps_per_epoch,
    )
    history: dict[str, list[float]] = {}

    def record(facts: Any) -> None:
        for key, value in facts.metrics.items():
            history.setdefault(key, []).append(value)

    trainer = Trainer(
        engine.loop,
        bridge,
        plan,
        validation=sources.validation,
        peers=Alone(),
        reporter=Silent(),
        on_epoch=record,
    )
    return Outcome(
        model=model, weights=[], history=history, engine=engine, bridge=bridge, trainer=trainer
    )


def train(build: Callable[[], keras.Model], data: Data, **options: Any) -> Outcome:
    """Train with kdist (2 epochs unless told); see `prepare` for the arguments."""
    outcome = prepare(build, data, **{"epochs": 2, **options})
    outcome.trainer.run()
    outcome.engine.loop.store.write_to_model()
    outcome.weights = numpy_weights(outcome.model)
    return outcome


def fit(
    build: Callable[[], keras.Model],
    data: Data,
    *,
    epochs: int = 2,
    batch_size: int = 8,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    class_weight: Mapping[int, float] | None = None,
) -> Outcome:
    """Train with plain Keras on one device."""
    keras.utils.set_random_seed(0)
    model = build()
    model.jit_compile = False
    x, y, *weight = data["train"]
    history = model.fit(
        x,
        y,
        sample_weight=weight[0] if weight else None,
        batch_size=batch_size,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
        class_weight=class_weight,
        validation_data=data.get("validation"),
    )
    return Outcome(model=model, weights=numpy_weights(model), history=history.history)


def numpy_weights(model: keras.Model) -> list[np.ndarray]:
    """Return the weights, without the seeds of random layers."""
    return [
        keras.ops.convert_to_numpy(variable)
        for variable in model.weights
        if "seed_generator_state" not in variable.path
    ]


def assert_same(
    outcome: Outcome, reference: Outcome, *, tolerance: float = TOLERANCE, history: bool = True
) -> None:
    """Compare all weights and every value of the history."""
    assert len(outcome.weights) == len(reference.weights)
    for variable, mine, theirs in zip(
        [v for v in outcome.model.weights if "seed_generator_state" not in v.path],
        outcome.weights,
        reference.weights,
        strict=True,
    ):
        np.testing.assert_allclose(
            mine, theirs, atol=tolerance, rtol=tolerance, err_msg=variable.path
        )
    if history:
        assert sorted(outcome.history) == sorted(reference.history)
        for key, values in reference.history.items():
            np.testing.assert_allclose(
                outcome.history[key], np.ravel(values), atol=tolerance, rtol=tolerance, err_msg=key
            )


def labelled_rows(num_rows: int = 33, num_features: int = 6, num_classes: int = 3) -> tuple:
    """Return random `x` and classes that depend on it."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(num_rows, num_features)).astype("float32")
    y = np.argmax(x[:, :num_classes] + 0.3 * rng.normal(size=(num_rows, num_classes)), axis=1)
    return x, y.astype("int32")
