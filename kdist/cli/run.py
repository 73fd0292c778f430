"""One run: check its configuration, decide what it consists of, and start it or become its task."""

import dataclasses
import random
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf, open_dict

from kdist import config as kdist_config
from kdist.cli.arguments import to_train
from kdist.cli.composition import Composition
from kdist.cli.quiet import hidden_stderr
from kdist.cli.reporting import answer, say
from kdist.cli.resolution import resolved, yaml_without_secrets
from kdist.cli.saved_run import with_data_of_run
from kdist.cluster.choose import Choice, choose_strategy
from kdist.cluster.tf_config import Membership, decode
from kdist.config.rules import COMMANDS_ON_A_RUN
from kdist.config.schema import Config
from kdist.errors import ConfigError
from kdist.launch.accelerators import count_accelerators
from kdist.launch.environment import prepare_environment
from kdist.launch.plan import FindPorts, LaunchPlan, PlannedTask, build_plan
from kdist.launch.plan_text import render_plan
from kdist.launch.ports import find_free_ports
from kdist.launch.request import Console, NullLink, TaskRequest
from kdist.records.reach import refuse_unreachable_places
from kdist.records.resumption import Wish, finished_text, is_finished, seed_of_run


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run before its first process: what was decided, and what each task is asked to do."""

    config: Config
    plan: LaunchPlan
    requests: tuple[TaskRequest, ...]


def run(composition: Composition, environ: MutableMapping[str, str], *, started_at_s: float) -> int:
    """Carry out one composed configuration; return the exit code.

    Args:
        composition: What the command line came to.
        environ: The process environment; tasks inherit what is set in it.
        started_at_s: When the user's command began, in seconds since the epoch.

    Raises:
        KdistError: If the configuration, the environment or the cluster is wrong.
    """
    if OmegaConf.select(composition.tree, "tuner.name") is not None:
        from kdist.cli.search import run_search

        return run_search(composition, environ, started_at_s=started_at_s)
    membership = decode(environ)
    prepared = prepare(composition, environ, membership, started_at_s=started_at_s)
    config, plan, requests = prepared.config, prepared.plan, prepared.requests
    if config.command == "plan":
        answer(render_plan(plan, to_train(composition.arguments)))
        if not config.plan.model:
            return 0
        requests = [asked for asked in requests if asked.task == plan.spec.chief]
    makes_folder = membership is None or membership.task == plan.spec.chief
    if config.command == "train" and makes_folder:
        chief = requests[plan.spec.tasks().index(plan.spec.chief)]
        # Other tasks of TF_CONFIG hear it from their chief.
        if is_finished(_wish(chief, config)) and membership is None:
            say(finished_text(composition.run_dir) + "\n")
            return 0
    if membership is None or config.command == "plan":
        from kdist.launch.local import run_local

        return run_local(requests)
    with hidden_stderr(is_hidden=not config.verbose):
        from kdist.assembly import task_main

    return task_main(requests[plan.spec.tasks().index(membership.task)], NullLink())


def prepare(
    composition: Composition,
    environ: MutableMapping[str, str],
    membership: Membership | None,
    *,
    started_at_s: float,
    num_accelerators: int | None = None,
    find_ports: FindPorts = find_free_ports,
) -> PreparedRun:
    """Check one composed configuration and decide what its run consists of; start nothing.

    Args:
        composition: What the command line came to.
        environ: The process environment; what tasks must inherit is set in it.
        membership: What TF_CONFIG says, if it is set.
        started_at_s: When the user's command began, in seconds since the epoch.
        num_accelerators: Accelerators that the run may use; all of this machine, unless given.
        find_ports: Returns that many different free ports of a host.

    Raises:
        KdistError: If the configuration, the environment or the cluster is wrong.
    """
    data_tree = with_data_of_run(composition.tree, composition.typed_keys)
    composition = dataclasses.replace(composition, tree=data_tree)
    config = kdist_config.load(resolved(composition.tree))
    if config.tuner.name is not None:
        raise ConfigError(
            f"A sweep holds runs, and a search is many of them. Received: tuner="
            f"{config.tuner.name} with -m. Start each search by itself."
        )
    if membership is None or membership.task == membership.spec.chief:
        key = "hydra.sweep.dir" if composition.line is None else "hydra.run.dir"
        refuse_unreachable_places(config, composition.run_dir, key=key)
    environ.update(
        prepare_environment(
            environ,
            verbose=config.verbose,
            hosts=_hosts(membership),
            is_task=membership is not None,
        )
    )
    if num_accelerators is None:
        num_accelerators = count_accelerators(environ)
    choice = _choose(config, membership, num_accelerators)
    composition = _settle(composition, config, choice, membership)
    plan = build_plan(
        kdist_config.load(resolved(composition.tree)),
        choice,
        membership,
        num_accelerators=num_accelerators,
        find_ports=find_ports,
        typed_keys=composition.typed_keys,
    )
    is_local = membership is None
    requests = tuple(
        _request(plan, planned, composition, is_local=is_local, started_at_s=started_at_s)
        for planned in plan.tasks
    )
    return PreparedRun(config=config, plan=plan, requests=requests)


def _hosts(membership: Membership | None) -> list[str]:
    """Return the hosts of the cluster, which no proxy may come between."""
    if membership is None:
        return []
    addresses = (membership.spec.address(task) for task in membership.spec.tasks())
    return sorted({address.rpartition(":")[0].strip("[]") for address in addresses})


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
    decided: dict[str, Any] = {"strategy.name": choice.name}
    if config.command in COMMANDS_ON_A_RUN:
        decided["strategy"] = {"name": choice.name}
    if config.seed is None:
        if membership is not None:
            raise ConfigError(
                "seed=null draws a seed, and each task of TF_CONFIG would draw its own. "
                "Give all of them the same number: seed=<number>."
            )
        drawn = random.SystemRandom().randrange(2**31)
        decided["seed"] = seed_of_run(composition.run_dir, drawn)
    with open_dict(tree):
        for key, value in decided.items():
            OmegaConf.update(tree, key, value, merge=False)
    return dataclasses.replace(composition, tree=tree)


def _wish(chief: TaskRequest, config: Config) -> Wish:
    """Return what the chief will ask of the run folder."""
    return Wish(
        run_dir=Path(chief.run_dir),
        config=config,
        config_yaml=chief.config_yaml,
        is_new_name=chief.may_rename_run_dir,
    )


def _request(
    plan: LaunchPlan,
    planned: PlannedTask,
    composition: Composition,
    *,
    is_local: bool,
    started_at_s: float,
) -> TaskRequest:
    """Return what one task is asked to do."""
    content = resolved(composition.tree)
    content["strategy"] |= {"replication": plan.traits.replication, "update": plan.traits.update}
    return TaskRequest(
        config=content,
        config_yaml=yaml_without_secrets(composition.tree),
        typed_keys=composition.typed_keys,
        spec=plan.spec,
        task=planned.task,
        run_dir=str(composition.run_dir),
        may_rename_run_dir=composition.is_default_dir,
        is_local=is_local,
        num_devices=planned.num_devices,
        accelerators=planned.accelerators,
        choice_line=plan.choice.line,
        notes=plan.notes,
        console=console_of_user(),
        started_at_s=started_at_s,
    )


def console_of_user() -> Console:
    """Return what kind of terminal, if any, the chief's report goes to."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns
    return Console(is_terminal=is_terminal, width=width, color=is_terminal)
