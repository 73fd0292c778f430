"""kdist.fit: what it was given becomes requests to tasks on this machine, and a result."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from kdist import config as kdist_config
from kdist.api.given import Given
from kdist.api.result import Result
from kdist.cluster.choose import choose_strategy
from kdist.cluster.tf_config import VARIABLE
from kdist.cluster.traits import traits_of
from kdist.config.from_python import nested, refuse_unheard, typed_keys
from kdist.config.schema import GIVEN, Config
from kdist.errors import ConfigError, KdistError, TrainingError
from kdist.launch.accelerators import count_accelerators
from kdist.launch.console_pump import TerminalEcho
from kdist.launch.environment import prepare_environment
from kdist.launch.local import LocalRun, run_tasks
from kdist.launch.plan import build_plan
from kdist.launch.ports import find_free_ports
from kdist.launch.request import Console, TaskRequest
from kdist.launch.standard_streams import open_closed_streams
from kdist.records.resumption import Wish, finished_text, is_finished

_INTERRUPTED = 130
_STOPPED = (_INTERRUPTED, 143)


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
        callbacks: Keras callbacks, a list or one; copies of them run on the chief, so what they
            collect in attributes stays there: let them write a file.
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
    open_closed_streams()
    _refuse_tf_config()
    given = Given(
        build_model=build_model,
        make_data=make_data,
        optimizer=optimizer,
        loss=loss,
        metrics=metrics,
        callbacks=callbacks,
    )
    given.check()
    objects = given.pickled()
    further = _by_key(config)
    typed = tuple(typed_keys(nested(further)))
    content = nested(
        {
            "model": {},
            "strategy.name": strategy,
            "strategy.devices": devices,
            "cluster.workers": workers,
            "cluster.ps": ps,
            "epochs": epochs,
            "data.batch_size": batch_size,
            **further,
        }
    )
    settings = kdist_config.load(content)
    refuse_unheard(settings, typed, given.compile_arguments)
    _refuse_other_commands(settings)
    requests = _requests(
        content,
        settings,
        given=given,
        run_dir=None if run_dir is None else _path(run_dir),
        typed_keys=(*typed, *given.compile_arguments),
        objects=objects,
        started_at_s=started_at_s,
    )
    custom_objects = given.custom_objects()
    folder = Path(requests[0].run_dir)
    wish = Wish(
        run_dir=folder,
        config=kdist_config.load(requests[0].config),
        config_yaml=requests[0].config_yaml,
        is_new_name=run_dir is None,
    )
    if is_finished(wish):
        TerminalEcho().write(finished_text(folder) + "\n")
        return Result.read(folder, custom_objects)
    ended = run_tasks(requests)
    if ended.exit_code == 0 and ended.run_dir is None:  # It had trained further, and has said so.
        return Result.read(folder, custom_objects)
    return Result.read(_run_dir_of(ended), custom_objects)


def _requests(
    content: Mapping[str, Any],
    settings: Config,
    *,
    given: Given,
    run_dir: Path | None,
    typed_keys: tuple[str, ...],
    objects: bytes,
    started_at_s: float,
) -> list[TaskRequest]:
    """Return what each task is asked to do; a strategy is chosen where none was named."""
    os.environ.update(prepare_environment(os.environ, verbose=settings.verbose))
    num_accelerators = count_accelerators(os.environ)
    asked = settings.strategy  # `config` may name it, too.
    choice = choose_strategy(asked.name, None, num_accelerators, num_devices=asked.devices)
    traits = traits_of(choice.name, asked.replication, asked.update)
    chosen = {
        "name": traits.name,
        "replication": traits.replication,
        "update": traits.update,
    }
    content = {**content, "strategy": {**content["strategy"], **chosen}}
    plan = build_plan(
        kdist_config.load(content),
        choice,
        None,
        num_accelerators=num_accelerators,
        find_ports=find_free_ports,
    )
    folder = _default_run_dir() if run_dir is None else run_dir
    is_terminal = sys.stdout.isatty()
    return [
        TaskRequest(
            config=content,
            config_yaml=yaml.safe_dump({**content, GIVEN: given.described()}),
            typed_keys=typed_keys,
            spec=plan.spec,
            task=planned.task,
            run_dir=str(folder.absolute()),
            may_rename_run_dir=run_dir is None,
            is_local=True,
            num_devices=planned.num_devices,
            accelerators=planned.accelerators,
            choice_line=choice.line,
            notes=plan.notes,
            console=Console(is_terminal=is_terminal, width=100, color=is_terminal),
            objects=objects,
            started_at_s=started_at_s,
        )
        for planned in plan.tasks
    ]


def _run_dir_of(ended: LocalRun) -> Path:
    """Return the folder of a run that was completed or stopped.

    Raises:
        KdistError: If it failed.
        KeyboardInterrupt: If it was stopped before it had a folder.
    """
    if ended.exit_code == _INTERRUPTED and ended.run_dir is None:
        raise KeyboardInterrupt
    if ended.exit_code not in (0, *_STOPPED) or ended.cause is not None or ended.run_dir is None:
        raise _error(ended.exit_code, ended.cause)
    return ended.run_dir


def _refuse_tf_config() -> None:
    if VARIABLE in os.environ:
        raise ConfigError(
            f"kdist.fit starts tasks of its own, on this machine. Received: {VARIABLE} is set, "
            "which makes this process one task of a cluster. Unset it, or train with "
            "python -m kdist on every machine of the cluster."
        )


def _refuse_other_commands(settings: Config) -> None:
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


def _by_key(config: Any) -> dict[str, Any]:
    """Return the argument `config`, checked: dotted keys, each with its value."""
    if config is None:
        return {}
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise ConfigError(
            "config must be a mapping of dotted keys to values, such as "
            f'{{"data.shuffle": False}}. Received: {config!r}.'
        )
    return dict(config)


def _path(run_dir: Any) -> Path:
    try:
        return Path(run_dir)
    except TypeError:
        raise ConfigError(f"run_dir must be a path. Received: {run_dir!r}.") from None


def _default_run_dir() -> Path:
    return Path("outputs") / datetime.now().strftime("%Y-%m-%d/%H-%M-%S")


def _error(exit_code: int, cause: Any) -> KdistError:
    message = getattr(cause, "message", None) or f"The run ended with exit code {exit_code}."
    task = getattr(cause, "task", None)
    text = f"{task}: {message}" if task is not None else message
    return ConfigError(text) if exit_code == ConfigError.exit_code else TrainingError(text)
