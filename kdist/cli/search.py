"""A search: checked here, without TensorFlow, then run by a task process of its own."""

import itertools
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kdist import config as kdist_config
from kdist.cli.composition import Composition
from kdist.cli.reporting import answer, say
from kdist.cli.resolution import resolved, yaml_without_secrets
from kdist.cli.run import console_of_user
from kdist.cli.trials import TrialComposer
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.tf_config import VARIABLE
from kdist.config.schema import Config
from kdist.config.space import Hyperparameter
from kdist.errors import ConfigError
from kdist.launch.environment import prepare_environment
from kdist.records.run_folder import refuse_used
from kdist.tuning.journal import NAME, read_journal
from kdist.tuning.objective import Objective
from kdist.tuning.orders import run_settings, space_of
from kdist.tuning.request import SearchRequest, TrialOrder
from kdist.tuning.role import VARIABLES, read_role
from kdist.tuning.settings import describe_changes, settings_of
from kdist.tuning.texts import finished_text, plan_text
from kdist.tuning.trials import SearchState

_TASK_MAIN = "kdist.tuning.task:search_main"
_RESULTS_S = 15.0  # For what a stopped search writes.


def run_search(
    composition: Composition, environ: MutableMapping[str, str], *, started_at_s: float
) -> int:
    """Check a search and carry it out, or go on with the one in its folder; return the exit code.

    Args:
        composition: What the command line came to; `tuner.name` is set.
        environ: The process environment; tasks inherit what is set in it.
        started_at_s: When the user's command began, in seconds since the epoch.

    Raises:
        KdistError: If the configuration or the environment is wrong, or the search that the
            folder holds is another one.
    """
    content = resolved(composition.tree)
    config = kdist_config.load(content)
    assert composition.line is not None, "Only sweeps compose without one, and refuse searches."
    if VARIABLE in environ:
        raise ConfigError(
            f"A search starts tasks of its own. Received: tuner={config.tuner.name} with "
            f"{VARIABLE} set. Unset it; for several machines see docs/searches.md."
        )
    role = read_role(environ)
    for name in VARIABLES:  # Keras Tuner reads them itself, and would serve or call by them.
        environ.pop(name, None)
    environ.update(prepare_environment(environ, verbose=config.verbose))
    compose = TrialComposer(line=composition.line)
    space = space_of(config)
    _check_space(compose, config, space)
    if config.command == "plan":
        answer(plan_text(config, space, role) + compose.plan_text(_probe(config, space)))
        return 0
    goes_on = False
    settings = settings_of(content)
    if role.is_local or role.is_chief:
        state = SearchState.of(read_journal(composition.run_dir / NAME))
        goes_on = bool(state.settings) or _was_to_search(composition.run_dir)
        objective = Objective.of(config.tuner.objective, config.tuner.direction)
        if goes_on:
            _refuse_changes(state.settings or settings, settings, composition.run_dir)
            finished = finished_text(state, objective, config.tuner.max_trials, composition.run_dir)
            if finished is not None:
                say(finished)
                return 0 if state.best(objective) else 1
        elif not composition.is_default_dir:
            refuse_used(composition.run_dir)
    spec = ClusterSpec({TaskType.CHIEF: ("127.0.0.1:0",)})
    request = SearchRequest(
        config=content,
        config_yaml=yaml_without_secrets(composition.tree),
        typed_keys=composition.typed_keys,
        spec=spec,
        task=Task(TaskType.CHIEF, 0),
        run_dir=str(composition.run_dir),
        may_rename_run_dir=composition.is_default_dir,
        is_local=True,
        console=console_of_user(),
        started_at_s=started_at_s,
        compose=compose,
        role=role,
        settings=settings,
        goes_on=goes_on,
    )
    return _run(request, config.cluster.stop_grace_s)


def _run(request: SearchRequest, stop_grace_s: float) -> int:
    from kdist.launch.local import run_tasks
    from kdist.launch.restarts import RestartPolicy
    from kdist.launch.timing import Timing

    return run_tasks(
        [request],
        task_main=_TASK_MAIN,
        restarts=RestartPolicy(),
        timing=Timing(stop_grace_s=2 * stop_grace_s + _RESULTS_S),  # Its runs get theirs first.
        preload=(),  # It imports TensorFlow while the server of its trials does the same.
    ).exit_code


def _was_to_search(run_dir: Path) -> bool:
    """Return whether a search was killed here before its first decision."""
    try:
        content = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
        return content["tuner"]["name"] is not None
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError):
        return False


def _refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], run_dir: Path) -> None:
    changes = describe_changes(before, now)
    if changes is not None:
        raise ConfigError(
            f"The folder holds a search of another kind, whose trials do not compare. Received: "
            f"{changes}. Go on with what it had, or start a new search in another folder than "
            f"{run_dir} (hydra.run.dir=...)."
        )


def _check_space(compose: TrialComposer, config: Config, space: Sequence[Hyperparameter]) -> None:
    """Compose what trials can be like, so that no trial is refused for a key or a type.

    Raises:
        ConfigError: If a key is none, or the ends of its range cannot be its value.
    """
    composed: set[str] = set()
    for values in _combinations(compose, space):
        try:
            content = resolved(compose.composition(_order(config, values)).tree)
            kdist_config.load(content)
        except ConfigError as error:
            raise _blamed(error, values) from error
        for entry in space:
            if entry.key not in values or entry.key in composed or compose.is_group(entry.key):
                continue
            composed.add(entry.key)
            for value in entry.extremes:
                try:
                    kdist_config.load(_changed(content, entry.key.lstrip("+"), value))
                except ConfigError as error:
                    raise _blamed(error, {entry.key: value}) from error


def _combinations(
    compose: TrialComposer, space: Sequence[Hyperparameter]
) -> Iterator[dict[str, Any]]:
    """Yield values that between them choose every group option and meet every condition."""
    entries = {entry.key: entry for entry in space}
    yield (first := _assignment(space, {}))
    seen = {frozenset(first)}
    for entry in space:
        is_group = compose.is_group(entry.key)
        if not is_group and any(entry.key in keys for keys in seen):
            continue
        for value in entry.values if is_group else (entry.default,):
            values = _assignment(space, {**_conditions(entry, entries), entry.key: value})
            seen.add(frozenset(values))
            yield values


def _conditions(entry: Hyperparameter, entries: Mapping[str, Hyperparameter]) -> dict[str, Any]:
    """Return values under which an entry counts."""
    values = {key: wanted[0] for key, wanted in entry.when.items()}
    above = [_conditions(entries[key], entries) for key in values]
    return dict(itertools.chain(*(each.items() for each in above), values.items()))


def _assignment(space: Sequence[Hyperparameter], forced: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for entry in space:  # Parents come first.
        if entry.is_active(values):
            values[entry.key] = forced.get(entry.key, entry.default)
    return values


def _probe(config: Config, space: Sequence[Hyperparameter]) -> TrialOrder:
    return _order(config, _assignment(space, {}))


def _order(config: Config, values: Mapping[str, Any]) -> TrialOrder:
    settings = run_settings(config, epochs=config.tuner.max_epochs or config.epochs)
    return TrialOrder(values=values, settings=settings, run_dir="")


def _changed(content: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    name, _, rest = key.partition(".")
    inner = content.get(name)
    if rest:
        value = _changed(inner if isinstance(inner, Mapping) else {}, rest, value)
    return {**content, name: value}


def _blamed(error: ConfigError, values: Mapping[str, Any]) -> ConfigError:
    shown = ", ".join(f"{key}={value}" for key, value in values.items())
    return ConfigError(f"tuner.space holds what no run can have ({shown}): {error}")
