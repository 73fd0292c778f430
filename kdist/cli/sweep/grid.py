"""Every combination of the values that vary: counted first, so that no endless list is made."""

import itertools
import math
from collections.abc import Mapping, Sequence

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Glob, Override, RangeSweep

from kdist.cli.composition import parse_overrides
from kdist.cli.hydra_errors import only_hydra
from kdist.cli.sweep.composing import SweepPlan
from kdist.config.reading import shown
from kdist.errors import ConfigError

MAX_JOBS = 10_000


def grid(plan: SweepPlan) -> list[list[str]]:
    """Return the overrides of every combination of values.

    Raises:
        ConfigError: If something varies that has no list of values, or there are too many jobs.
    """
    params = plan.tree.hydra.sweeper.get("params") or {}
    asked = [*(f"{key}={value}" for key, value in params.items()), *plan.arguments]
    overrides = {
        override.get_key_element(): override
        for override in parse_overrides(without_globs(asked, plan.loader))
    }
    _refuse_too_many(overrides)
    choices = [_choices(key, override) for key, override in overrides.items()]
    return [list(job) for job in itertools.product(*choices)]


def without_globs(overrides: Sequence[str], loader: ConfigLoader) -> list[str]:
    """Return the overrides with the options that each `glob(...)` matches in its place.

    Args:
        overrides: What varies, as it was typed.
        loader: Knows the options of each group.

    Raises:
        ConfigError: If a glob matches nothing, or stands for a value rather than an option.
    """
    parsed = zip(overrides, parse_overrides(overrides), strict=True)
    return [_expanded(typed, override, loader) for typed, override in parsed]


def _refuse_too_many(overrides: Mapping[str, Override]) -> None:
    """Refuse what would be no job at all, or more jobs than a sweep may have.

    Args:
        overrides: All of them, by key.

    Raises:
        ConfigError: Naming what came in.
    """
    varying = {key: each for key, each in overrides.items() if each.is_sweep_override()}
    with only_hydra([str(override.input_line) for override in varying.values()]):
        counts = {key: _count(key, override) for key, override in varying.items()}
    for key, count in counts.items():
        if not count:
            raise ConfigError(
                f"{key} has no values, so there is nothing to run. Received: "
                f"{varying[key].input_line}. Write {key}=a,b, or range(start,stop) with the stop "
                "behind the start."
            )
    num_jobs = math.prod(counts.values())
    if num_jobs > MAX_JOBS:
        is_counted = all(count <= MAX_JOBS for count in counts.values())
        told = f"{num_jobs:,}" if is_counted else f"more than {MAX_JOBS:,}"
        typed = " ".join(str(override.input_line) for override in varying.values())
        raise ConfigError(
            f"A sweep has at most {MAX_JOBS:,} jobs. Received: {told}, by {shown(typed)}. Give "
            "fewer values, or take a sweeper that chooses among them: hydra/sweeper=optuna."
        )


def _expanded(typed: str, override: Override, loader: ConfigLoader) -> str:
    pattern = override.value()
    if not isinstance(pattern, Glob):
        return typed
    group, key = override.key_or_group, override.get_key_element()
    options = loader.get_group_options(group, results_filter=ObjectType.CONFIG)
    if not options:
        raise ConfigError(
            f"glob(...) stands for options of a group, and {group} is none. Received: {typed}. "
            f"Write the values: {key}=a,b."
        )
    found = pattern.filter(options)
    if not found:
        raise ConfigError(
            f"{group} has no option that the glob matches. Received: {typed}. Its options: "
            f"{', '.join(options)}."
        )
    return f"{key}={','.join(found)}"


def _count(key: str, override: Override) -> int:
    """Return how many values there are, or a number above `MAX_JOBS` where there are more."""
    if not override.is_discrete_sweep():
        raise ConfigError(
            f"{key} needs a list of values. Received: {override.input_line}. Write {key}=a,b, "
            "or take a sweeper that chooses by itself: hydra/sweeper=optuna."
        )
    values = override.value()
    if not isinstance(values, RangeSweep):
        return sum(1 for _ in override.sweep_string_iterator())
    if values.step == 0:
        raise ConfigError(
            f"{key} has a range whose step is 0: it never ends. Received: {override.input_line}. "
            "Write range(start,stop,step) with another step."
        )
    return sum(1 for _ in itertools.islice(values.range(), MAX_JOBS + 1))


def _choices(key: str, override: Override) -> list[str]:
    if override.is_sweep_override():
        return [f"{key}={value}" for value in override.sweep_string_iterator()]
    return [str(override.input_line)]
