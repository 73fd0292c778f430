"""One run: check its configuration, decide what it consists of, and start it or become its task."""

import dataclasses
import random
import shutil
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf, open_dict

from kdist import config as kdist_config
from kdist.cli.composition import Composition
from kdist.cli.environment import count_accelerators, prepare
from kdist.cli.resolution import resolved, yaml_without_secrets
from kdist.cluster.choose import Choice, choose_strategy
from kdist.cluster.tf_config import Membership, decode
from kdist.cluster.traits import traits_of
from kdist.config.rules import COMMANDS_ON_A_RUN
from kdist.config.schema import Config, StrategyConfig
from kdist.errors import ConfigError
from kdist.launch.plan import LaunchPlan, build_plan
from kdist.launch.plan_text import render_plan
from kdist.launch.ports import find_free_ports

if TYPE_CHECKING:
    from kdist.launch.request import Console, TaskRequest


def run(composition: Composition, environ: MutableMapping[str, str]) -> int:
    """Carry out one composed configuration; return the exit code.

    Args:
        composition: What the command line came to.
        environ: The process environment; tasks inherit what is set in it.

    Raises:
        KdistError: If the configuration, the environment or the cluster is wrong.
    """
    membership = decode(environ)
    config = kdist_config.load(resolved(composition.tree))
    prepare(environ, is_verbose=config.verbose)
    num_accelerators = count_accelerators(environ)
    choice = _choose(config, membership, num_accelerators)
    composition = _settle(composition, config, choice, membership)
    plan = build_plan(
        kdist_config.load(resolved(composition.tree)),
        choice,
        membership,
        num_accelerators=num_accelerators,
        find_ports=find_free_ports,
        typed_keys=composition.typed_keys,
    )
    if config.command == "plan":
        sys.stdout.write(render_plan(plan))
        sys.stdout.flush()
        if not config.plan.model:
            return 0
    requests = _requests(plan, composition, is_local=membership is None)
    if membership is None:
        from kdist.launch.local import run_local

        return run_local(requests)
    from kdist.assembly import task_main
    from kdist.launch.request import NullLink

    return task_main(requests[plan.spec.tasks().index(membership.task)], NullLink())


def _choose(config: Config, membership: Membership | None, num_accelerators: int) -> Choice:
    """Return the strategy; what reads a finished run needs one process only."""
    if config.command not in COMMANDS_ON_A_RUN:
        strategy = config.strategy
        return choose_strategy(
            strategy.name, membership, num_accelerators, num_devices=strategy.devices
        )
    if membership is not None and membership.spec.is_distributed:
        raise ConfigError(
            f"command={config.command} runs in one process. Received: TF_CONFIG with several "
            "tasks. Unset it."
        )
    return Choice("single", f"command={config.command} runs in one process")


def _settle(
    composition: Composition, config: Config, choice: Choice, membership: Membership | None
) -> Composition:
    """Return the composition with what kdist decided written into its tree.

    Raises:
        ConfigError: If a seed is to be drawn where several processes would each draw their own.
    """
    tree = composition.tree.copy()
    strategy = config.strategy
    if config.command in COMMANDS_ON_A_RUN:
        strategy = StrategyConfig(name=choice.name)
    traits = traits_of(choice.name, strategy.replication, strategy.update)
    decided: dict[str, Any] = {
        "strategy.devices": strategy.devices,
        "strategy.name": traits.name,
        "strategy.replication": traits.replication,
        "strategy.update": traits.update,
    }
    if config.seed is None:
        if membership is not None:
            raise ConfigError(
                "seed=null draws a seed, and each task of TF_CONFIG would draw its own. "
                "Give all of them the same number: seed=<number>."
            )
        decided["seed"] = random.SystemRandom().randrange(2**31)
    with open_dict(tree):
        for key, value in decided.items():
            OmegaConf.update(tree, key, value)
    return dataclasses.replace(composition, tree=tree)


def _requests(plan: LaunchPlan, composition: Composition, *, is_local: bool) -> "list[TaskRequest]":
    """Return what each task is asked to do, in the order of the plan."""
    from kdist.launch.request import TaskRequest

    content = resolved(composition.tree)
    saved = yaml_without_secrets(composition.tree)
    console = _console()
    return [
        TaskRequest(
            config=content,
            config_yaml=saved,
            typed_keys=composition.typed_keys,
            spec=plan.spec,
            task=planned.task,
            run_dir=str(composition.run_dir),
            is_local=is_local,
            choice_line=plan.choice.line,
            console=console,
            objects=None,
        )
        for planned in plan.tasks
    ]


def _console() -> "Console":
    """Return what kind of terminal, if any, the chief's report goes to."""
    from kdist.launch.request import Console

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns
    return Console(is_terminal=is_terminal, width=width, color=is_terminal)
