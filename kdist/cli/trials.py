"""The runs of a search's trials, composed like any command line."""

import dataclasses
import functools
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from kdist.cli.arguments import CommandLine
from kdist.cli.composition import Composition, compose_run, known_groups, parse_overrides
from kdist.cli.run import prepare
from kdist.errors import ConfigError
from kdist.launch.accelerators import count_accelerators
from kdist.launch.plan import FindPorts
from kdist.launch.plan_text import render_plan
from kdist.launch.ports import PortLeases
from kdist.launch.request import TaskRequest
from kdist.tuning.request import TrialOrder

_SECTION = "tuner"


@dataclass(frozen=True, kw_only=True)
class TrialComposer:
    """Makes the runs of trials out of the command line that asked for the search. Picklable."""

    line: CommandLine

    def __call__(self, order: TrialOrder) -> tuple[TaskRequest, ...]:
        """Return the requests of one run; see `kdist.tuning.request.ComposeTrial`."""
        composition = self.composition(order)
        num_present = count_accelerators(os.environ)
        num_own = max(1, num_present // order.num_slots) if num_present else 0
        prepared = prepare(
            composition,
            os.environ,
            None,
            started_at_s=time.time(),
            num_accelerators=num_own,
            find_ports=_ports_of_slot(order.slot),
        )
        first = order.slot * num_own
        return tuple(
            dataclasses.replace(
                request,
                accelerators=tuple((first + i) % num_present for i in request.accelerators),
                may_rename_run_dir=False,
            )
            for request in prepared.requests
        )

    def composition(self, order: TrialOrder) -> Composition:
        """Return the configuration of one run.

        Raises:
            ConfigError: If a key is none, or a value cannot be one of its key.
        """
        composed = compose_run(self.line_of(order.values))
        return dataclasses.replace(
            composed,
            tree=_with_settings(composed.tree, order.settings),
            run_dir=Path(order.run_dir),
            is_default_dir=False,
        )

    def plan_text(self, order: TrialOrder) -> str:
        """Return what `command=plan` shows of one run."""
        composition = self.composition(order)
        return render_plan(prepare(composition, os.environ, None, started_at_s=time.time()).plan)

    def is_group(self, key: str) -> bool:
        """Return whether a key chooses options of a group."""
        return key in known_groups(self.line)

    def line_of(self, values: Mapping[str, Any]) -> CommandLine:
        """Return the command line of one run: the search's without the search, with the values."""
        names = {key.lstrip("+") for key in values}
        kept = []
        for override in self.line.overrides:
            [parsed] = parse_overrides([override])
            key = parsed.key_or_group
            is_search = key == _SECTION or key.startswith(f"{_SECTION}.")
            if not is_search and key not in names:
                kept.append(override)
        groups = known_groups(self.line)
        typed = [_override(key, value, key in groups) for key, value in values.items()]
        return dataclasses.replace(self.line, overrides=(*kept, *typed))


@functools.cache
def _leases() -> tuple[PortLeases, dict[int, tuple[int, ...]]]:
    """Return the ports that runs of this process have, all of them and by slot."""
    return PortLeases(), {}


def _ports_of_slot(slot: int) -> FindPorts:
    """Return how a slot's next run finds ports that no other slot's run has."""
    leases, by_slot = _leases()

    def find(host: str, num_ports: int) -> tuple[int, ...]:
        leases.give_back(by_slot.pop(slot, ()))  # The run before has ended.
        by_slot[slot] = leases.find(host, num_ports)
        return by_slot[slot]

    return find


def _with_settings(tree: DictConfig, settings: Mapping[str, Any]) -> DictConfig:
    found = tree.copy()
    with open_dict(found):
        found.pop(_SECTION, None)
        for key, value in settings.items():
            OmegaConf.update(found, key, value, merge=False)
    return found


def _override(key: str, value: Any, is_group: bool) -> str:
    """Return an override as one would type it."""
    if is_group:
        if not isinstance(value, str):
            raise ConfigError(
                f"tuner.space.{key} chooses options of the group {key}, by name. "
                f"Received: {value!r}."
            )
        return f"{key}={value}"
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    """Return a plain value in Hydra's grammar."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\") if value.endswith("\\") else value
        return '"' + escaped.replace('"', '\\"') + '"'
    return json.dumps(value)
