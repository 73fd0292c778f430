"""kdist from Python, notebooks included: `kdist.fit` trains as the command line does."""

import csv
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import cloudpickle
import yaml

from kdist import config as kdist_config
from kdist.cluster.choose import choose_strategy
from kdist.cluster.tf_config import VARIABLE
from kdist.cluster.traits import traits_of
from kdist.config.from_python import nested, refuse_unheard, typed_keys
from kdist.errors import ConfigError, KdistError, TrainingError
from kdist.launch.accelerators import count_accelerators
from kdist.launch.environment import prepare_environment
from kdist.launch.local import run_tasks
from kdist.launch.plan import build_plan
from kdist.launch.ports import find_free_ports
from kdist.launch.request import Console, TaskRequest
from kdist.records.result import read_result
from kdist.records.resumption import Wish, finished_text, is_finished

_INTERRUPTED = 130
_STOPPED = (_INTERRUPTED, 143)


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        run_dir: The run folder.
        content: result.json.
        history: One list an entry of the logs (`loss`, `val_loss`, ...), a value an epoch.
        custom_objects: The user's own classes and functions by name, which a saved model names.
    """

    run_dir: Path
    content: Mapping[str, Any]
    history: Mapping[str, list[float]] = field(default_factory=dict)
    custom_objects: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Loss and metrics of the last epoch."""
        return self.content["metrics"]

    @property
    def status(self) -> str:
        """`completed` or `stopped`."""
        return self.content["status"]

    @cached_property
    def model(self) -> Any:
        """The trained Keras model, loaded from `model.keras` on first use."""
        import keras

        file = self.run_dir / "model.keras"
        try:
            return keras.saving.load_model(file)
        except (TypeError, ValueError):  # It names what only the user's own script knows.
            return keras.saving.load_model(file, custom_objects=dict(self.custom_objects))


def fit(
    build_model: Callable[[], Any],
    make_data: Callable[[], Mapping[str, Any]],
    *,
    strategy: str | None = None,
    workers: int = 2,
    ps: int = 2,
    devices: int | None = None,
    epochs: int = 1,
    batch_size: int = 64,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = None,
    callbacks: Any = None,
    run_dir: str | os.PathLike[str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Result:
    """Train a Keras model under a strategy, in processes of its own, and return the result.

    Functions and objects travel to the tasks by value, so they may be defined in a notebook.

    Args:
        build_model: Returns a `keras.Model`, compiled or not.
        make_data: Returns `{"train": part, "validation": part}`; every training task calls it.
        strategy: single, mirrored, multiworker or ps; `None` lets kdist choose.
        workers: Worker tasks, for strategies that have them.
        ps: Parameter servers, likewise.
        devices: Devices of one task.
        epochs: Passes over the training data.
        batch_size: Examples a batch over all replicas (`ps`: of each worker).
        optimizer: Keras optimizer, configuration or name, for a model that comes uncompiled.
        loss: The same for its loss.
        metrics: The same for its metrics: a list, or a mapping by output; one is a list of one.
        callbacks: Keras callbacks, a list or one; they run on the chief.
        run_dir: The run folder; by default a new one in `outputs/`.
        config: Further settings by dotted key, such as `{"data.shuffle": False}`.

    Raises:
        ConfigError: If something cannot work, TF_CONFIG being set included; nothing was started
            then, or nothing trained.
        TrainingError: If training failed; the message names the task.
        KeyboardInterrupt: If Ctrl-C came before training began; later, it stops training, and the
            result's status is `stopped`.
    """
    started_at_s = time.time()
    if VARIABLE in os.environ:
        raise ConfigError(
            f"kdist.fit starts tasks of its own, on this machine. Received: {VARIABLE} is set, "
            "which makes this process one task of a cluster. Unset it, or train with "
            "python -m kdist on every machine of the cluster."
        )
    metrics = dict(metrics) or None if isinstance(metrics, Mapping) else _listed(metrics)
    objects = _objects(
        build_model=build_model,
        make_data=make_data,
        optimizer=optimizer,
        loss=loss,
        metrics=metrics,
        callbacks=_listed(callbacks),
    )
    typed = tuple(typed_keys(nested(config or {})))
    given = {"optimizer": optimizer, "loss": loss, "metrics": metrics}
    given_names = tuple(name for name, value in given.items() if value is not None)
    content = nested(
        {
            "model": {},
            "strategy.name": strategy,
            "strategy.devices": devices,
            "cluster.workers": workers,
            "cluster.ps": ps,
            "epochs": epochs,
            "data.batch_size": batch_size,
            **(config or {}),
        }
    )
    settings = kdist_config.load(content)
    refuse_unheard(settings, typed, given_names)
    if settings.command != "train":
        raise ConfigError(
            f"kdist.fit trains. Received: command={settings.command}. Use the command line: "
            f"python -m kdist command={settings.command}."
        )
    if settings.tuner.name is not None:
        raise ConfigError(
            "kdist.fit trains one run. Received: tuner.name="
            f"{settings.tuner.name}. Search from the command line: python -m kdist +tuner=random."
        )
    os.environ.update(prepare_environment(os.environ, verbose=settings.verbose))
    num_accelerators = count_accelerators(os.environ)
    asked = settings.strategy  # `config` may name it, too.
    choice = choose_strategy(asked.name, None, num_accelerators, num_devices=asked.devices)
    traits = traits_of(choice.name, settings.strategy.replication, settings.strategy.update)
    content["strategy"] |= {
        "name": traits.name,
        "replication": traits.replication,
        "update": traits.update,
    }
    plan = build_plan(
        kdist_config.load(content),
        choice,
        None,
        num_accelerators=num_accelerators,
        find_ports=find_free_ports,
    )
    folder = Path(run_dir) if run_dir is not None else _default_run_dir()
    requests = [
        TaskRequest(
            config=content,
            config_yaml=yaml.safe_dump(content),
            typed_keys=(*typed, *given_names),
            spec=plan.spec,
            task=planned.task,
            run_dir=str(folder.absolute()),
            may_rename_run_dir=run_dir is None,
            is_local=True,
            num_devices=planned.num_devices,
            accelerators=planned.accelerators,
            choice_line=choice.line,
            notes=plan.notes,
            console=Console(is_terminal=sys.stdout.isatty(), width=100, color=sys.stdout.isatty()),
            objects=objects,
            started_at_s=started_at_s,
        )
        for planned in plan.tasks
    ]
    custom_objects = _custom_objects(build_model, optimizer, loss, metrics)
    wish = Wish(
        run_dir=folder,
        config=kdist_config.load(content),
        config_yaml=requests[0].config_yaml,
        is_new_name=run_dir is None,
    )
    if is_finished(wish):
        sys.stdout.write(finished_text(folder) + "\n")
        return _result(folder, custom_objects)
    ended = run_tasks(requests)
    if ended.exit_code == 0 and ended.run_dir is None:  # It had trained further, and has said so.
        return _result(folder, custom_objects)
    if ended.exit_code == _INTERRUPTED and ended.run_dir is None:
        raise KeyboardInterrupt
    if ended.exit_code not in (0, *_STOPPED) or ended.cause is not None or ended.run_dir is None:
        raise _error(ended.exit_code, ended.cause)
    return _result(ended.run_dir, custom_objects)


def _result(run_dir: Path, custom_objects: Mapping[str, Any]) -> Result:
    return Result(
        run_dir,
        read_result(run_dir / "result.json"),
        _history(run_dir / "metrics.csv"),
        custom_objects,
    )


def _custom_objects(build_model: Callable[[], Any], *given: Any) -> dict[str, Any]:
    """Return the classes and functions that a model function sees, and those in what was given."""
    seen: dict[str, Any] = {}
    code = inspect.unwrap(build_model)
    if inspect.isfunction(code):
        seen |= {**code.__globals__, **inspect.getclosurevars(code).nonlocals}
    entries = list(given)
    while entries:
        entry = entries.pop()
        if isinstance(entry, Mapping):
            entries += entry.values()
        elif isinstance(entry, list | tuple):
            entries += entry
        elif entry is not None:
            named = entry if inspect.isfunction(entry) else type(entry)
            seen[named.__name__] = named
    return {
        name: each
        for name, each in seen.items()
        if inspect.isroutine(each) or inspect.isclass(each)
    }


def _listed(given: Any) -> list[Any] | None:
    """Return one thing as a list of one, as `fit` of Keras does, and nothing as `None`."""
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    return ([given] if is_one and given is not None else list(given or ())) or None


def _objects(**given: Any) -> bytes:
    try:
        return cloudpickle.dumps(
            {name: value for name, value in given.items() if value is not None}
        )
    except (TypeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"What kdist.fit was given cannot be sent to the tasks: {error} Make models, arrays "
            "and open files inside build_model and make_data."
        ) from error


def _default_run_dir() -> Path:
    return Path("outputs") / datetime.now().strftime("%Y-%m-%d/%H-%M-%S")


def _error(exit_code: int, cause: Any) -> KdistError:
    message = getattr(cause, "message", None) or f"The run ended with exit code {exit_code}."
    task = getattr(cause, "task", None)
    text = f"{task}: {message}" if task is not None else message
    return ConfigError(text) if exit_code == ConfigError.exit_code else TrainingError(text)


def _history(path: Path) -> dict[str, list[float]]:
    with path.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    left_out = ("epoch", "global_step", "seconds", "examples")
    names = [name for name in (rows[0] if rows else {}) if name not in left_out]
    return {
        name: [float(row[name]) if row[name] else float("nan") for row in rows] for name in names
    }
