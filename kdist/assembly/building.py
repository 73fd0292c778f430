"""Builds what the user's configuration names: data, model, optimizer, losses, callbacks."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kdist.assembly.row_tables import building_tables
from kdist.config.schema import Config, TargetConfig
from kdist.config.targets import TARGET, BoundTarget, bind_target, resolve
from kdist.distribute.data import DataSettings, make_source
from kdist.distribute.data.source import BatchSource
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError

Objects = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The parts of the data, and what a user should know about them."""

    train: BatchSource
    validation: BatchSource | None
    notes: tuple[str, ...] = ()


class Builder:
    """Calls the targets of one configuration; each method may be called once."""

    def __init__(self, config: Config, typed_keys: Sequence[str]):
        """Remember the configuration.

        Args:
            config: The checked configuration.
            typed_keys: Dotted keys that the user typed.
        """
        self._config = config
        self._typed = tuple(typed_keys)
        self._objects: Objects = {}
        self.notes: list[str] = []

    def use(self, objects: Objects) -> None:
        """Let live objects take the place of `_target_`s (`kdist.fit`)."""
        self._objects = objects

    def data(self, share: WorkerShare, *, batch_is_global: bool = True) -> Sources:
        """Call the data function and check what it returns.

        Args:
            share: This task's place among the workers.
            batch_is_global: See `StrategyTraits`.

        Raises:
            ConfigError: If it returns no parts, or a part cannot be trained on.
        """
        config = self._config
        parts = self._call("make_data", "data", config.data, extra={"seed": config.seed})
        if not isinstance(parts, Mapping) or "train" not in parts:
            raise ConfigError(
                'The data function must return a mapping with a "train" part (and "validation"). '
                f"Received: {type(parts).__name__}"
                + (f" with {', '.join(map(str, parts))}." if isinstance(parts, Mapping) else ".")
            )
        data = config.data
        settings = DataSettings(
            batch_size=data.batch_size,
            shuffle=data.shuffle,
            seed=(config.seed or 0) if data.seed is None else data.seed,
            cache_bytes=data.cache_bytes,
            steps_per_epoch=config.steps_per_epoch or config.limit_batches,
            share=share,
            batch_is_global=batch_is_global,
        )
        train = make_source(
            parts["train"], settings=settings, class_weight=config.class_weight, key="data.train"
        )
        validation = None
        if parts.get("validation") is not None:
            validation = make_source(
                parts["validation"],
                settings=DataSettings(
                    batch_size=data.validation_batch_size or data.batch_size,
                    shuffle=False,
                    cache_bytes=data.cache_bytes,
                    steps_per_epoch=config.limit_batches,
                    is_for_training=False,
                ),
                key="data.validation",
            )
        notes = [*train.warnings, *(validation.warnings if validation else ())]
        others = [str(name) for name in parts if name not in ("train", "validation")]
        if validation is None and others:  # Perhaps "val" was meant to be one.
            notes.append(
                'The data function returns no "validation" part: nothing is validated. '
                f"Not used: {', '.join(others)}."
            )
        return Sources(train=train, validation=validation, notes=tuple(notes))

    def model(self, *, has_values_from_chief: bool = False) -> keras.Model:
        """Call the model function; compile what comes uncompiled.

        Args:
            has_values_from_chief: Whether first weights (`init_from`) are not for this task.

        Raises:
            ConfigError: If it returns no model, or a compiled model meets typed overrides.
        """
        config = self._config
        with building_tables(config, has_values_from_chief=has_values_from_chief):
            model = self._call("build_model", "model", config.model, extra={"seed": config.seed})
        if not isinstance(model, keras.Model):
            raise ConfigError(
                f"model._target_ must return a keras.Model. Received: {type(model).__name__}. "
                "Models of tf_keras (TF_USE_LEGACY_KERAS) are not Keras 3 models."
            )
        if not model.compiled:
            self._compile(model)
            return model
        clashing = [
            key for key in self._typed if key.split(".")[0] in ("optimizer", "loss", "metrics")
        ]
        if clashing:
            raise ConfigError(
                "The model function returns a compiled model, which keeps its optimizer, loss and "
                f"metrics. Received: {', '.join(clashing)}. Return it uncompiled, or change the "
                "function."
            )
        if model.optimizer is None:
            raise ConfigError(
                "The model was compiled without an optimizer. Give compile() one, or return the "
                "model uncompiled."
            )
        return model

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Make the callbacks, in the order of their names in the configuration.

        Raises:
            ConfigError: If one is no Keras callback, or one that cannot work here.
        """
        made = list(self._objects.get("callbacks", ()))
        for given in made:
            if not isinstance(given, keras.callbacks.Callback):
                raise ConfigError(
                    f"callbacks must be keras.callbacks.Callback objects. Received: {given!r}."
                )
        for name, section in self._config.callbacks.items():
            callback = self._call(None, f"callbacks.{name}", section)
            if not isinstance(callback, keras.callbacks.Callback):
                raise ConfigError(
                    f"callbacks.{name}._target_ must make a keras.callbacks.Callback. "
                    f"Received: {type(callback).__name__}."
                )
            made.append(callback)
        if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in made):
            raise ConfigError(
                "keras.callbacks.BackupAndRestore goes on at an epoch of its own, which repeats "
                "updates. Received: it among the callbacks. Use keras.callbacks.ModelCheckpoint, "
                "and init_from=<run or weights> for a later run."
            )
        return made

    def _compile(self, model: keras.Model) -> None:
        config = self._config
        optimizer = "adam"
        if "optimizer" in self._objects:
            optimizer = self._objects["optimizer"]
        elif config.optimizer is not None and config.optimizer.target is not None:
            optimizer = self._call(None, "optimizer", _with_float_rate(config.optimizer))
        loss = self._objects.get("loss", resolve("loss", config.loss))
        metrics = self._metrics_for(loss)
        try:
            loss = keras.tree.map_structure(_made, loss)
            metrics = keras.tree.map_structure(_made, metrics or None)
            model.compile(optimizer=optimizer, loss=loss, metrics=metrics)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"The model cannot be compiled: {error} Received: optimizer={optimizer}, "
                f"loss={self._objects.get('loss', config.loss)}, "
                f"metrics={self._objects.get('metrics', config.metrics)}."
            ) from error

    def _metrics_for(self, loss: Any) -> Any:
        """Return the metrics; a default for one output is left out where losses are for several."""
        if "metrics" in self._objects:
            return self._objects["metrics"]
        metrics = self._config.metrics
        is_typed = any(key.split(".")[0] == "metrics" for key in self._typed)
        are_names = isinstance(metrics, list) and all(isinstance(each, str) for each in metrics)
        num_losses = len(loss) if isinstance(loss, Mapping | list | tuple) else 1
        if is_typed or not are_names or not metrics or num_losses in (1, len(metrics)):
            return resolve("metrics", metrics)
        self.notes.append(
            f"metrics=[{', '.join(metrics)}], the default, is left out: there are {num_losses} "
            "losses. Name metrics by output, as in 'metrics={first: [mae]}'."
        )
        return None

    def _call(
        self,
        object_name: str | None,
        key: str,
        section: TargetConfig,
        extra: Mapping[str, Any] | None = None,
    ) -> Any:
        function: Callable[[], Any] | None = self._objects.get(object_name or "")
        if function is not None:
            given = BoundTarget(key=key, path=str(object_name), function=function, arguments={})
            return given.call()
        bound = bind_target(key, section, typed_keys=self._typed, extra=extra)
        # Keys that the option's own target left there: one that nobody typed is dropped without a
        # word, but not given in place of the new target's default.
        if f"{key}.{TARGET}" in self._typed:
            if bound.inherited:
                self.notes.append(
                    f"{bound.path} is called with what {key} held before: {bound.shown_inherited}. "
                    f"++{key}.<argument>=... changes one."
                )
        elif bound.dropped:
            self.notes.append(f"{bound.path} does not take {', '.join(bound.dropped)}: left out.")
        return bound.call()


def _made(given: Any) -> Any:
    """Return an object of a class: Keras compiles the class itself, but cannot save it."""
    return given() if inspect.isclass(given) else given


def _with_float_rate(section: TargetConfig) -> TargetConfig:
    """Let `learning_rate=1` mean 1.0; Keras wants a float."""
    rate = section.arguments.get("learning_rate")
    if not isinstance(rate, int) or isinstance(rate, bool):
        return section
    return TargetConfig(
        target=section.target, arguments={**section.arguments, "learning_rate": float(rate)}
    )
