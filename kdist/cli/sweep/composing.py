"""The configurations of a sweep, composed by Hydra: its own, and one for each job."""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from kdist.cli.arguments import CommandLine, as_hydra_takes_them
from kdist.cli.composition import (
    Composition,
    checked_overrides,
    known_groups,
    parse_overrides,
    search_path,
    typed_keys,
    without_hydra,
)
from kdist.cli.groups import PRIMARY
from kdist.cli.hydra_errors import explained, only_hydra
from kdist.cli.sweep.jobs import SweepJob
from kdist.config import reading
from kdist.config.schema import SweepConfig
from kdist.errors import ConfigError

GRID = "basic"  # Hydra's name for every combination of values.
_ONE_BY_ONE, _SIDE_BY_SIDE = "basic", "joblib"


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A sweep as it was typed, before its jobs are known.

    Attributes:
        tree: Its composed configuration, Hydra's part included, without the values that vary.
        loader: Composes each job's.
        groups: The options of each group.
        settings: The section `sweep`.
        typed: What was typed, in parsed form.
        files: The flags that say where configuration files are.
    """

    tree: DictConfig
    loader: ConfigLoader
    groups: Mapping[str, Collection[str]]
    settings: SweepConfig
    typed: tuple[Override, ...]
    files: tuple[str, ...] = ()

    @property
    def sweeper(self) -> str:
        """The option of hydra/sweeper that was chosen."""
        return str(self.tree.hydra.runtime.choices["hydra/sweeper"])

    @property
    def folder(self) -> Path:
        """Where the sweep's folder goes."""
        return Path(str(self.tree.hydra.sweep.dir))

    def settle_on(self, folder: Path) -> None:
        """Make this folder the one that the jobs and Hydra's sweepers see."""
        with read_write(self.tree.hydra):
            self.tree.hydra.sweep.dir = str(folder)

    @property
    def names_folder(self) -> bool:
        """Whether the folder was named, rather than made of the time."""
        raw = OmegaConf.to_container(self.tree.hydra.sweep, resolve=False)
        assert isinstance(raw, dict)
        is_typed = any(each.key_or_group == "hydra.sweep.dir" for each in self.typed)
        return is_typed or "${now:" not in str(raw["dir"])

    @property
    def arguments(self) -> list[str]:
        """What a sweeper gets: the overrides, values that vary included, as they were typed."""
        typed = OmegaConf.to_container(self.tree.hydra.overrides.task, resolve=False)
        assert isinstance(typed, list)
        return [str(entry) for entry in typed]

    def num_at_once(self, num_cpus: int) -> int:
        """Return how many jobs may run side by side.

        Raises:
            ConfigError: If the launcher is none of kdist's.
        """
        launcher = self.tree.hydra.runtime.choices["hydra/launcher"]
        if launcher == _ONE_BY_ONE:
            return 1
        if launcher != _SIDE_BY_SIDE:
            raise ConfigError(
                "kdist starts the jobs of a sweep itself, on this machine. Received: "
                f"hydra/launcher={launcher}. Use hydra/launcher=joblib hydra.launcher.n_jobs=2 "
                "for jobs side by side."
            )
        for each in self.typed:
            key = each.key_or_group
            if key.startswith("hydra.launcher.") and key != "hydra.launcher.n_jobs":
                raise ConfigError(
                    f"kdist starts the jobs of a sweep itself: joblib's {key} has no meaning. "
                    f"Received: {each.input_line}. Use hydra.launcher.n_jobs."
                )
        num_jobs = self.tree.hydra.launcher.n_jobs
        if not isinstance(num_jobs, int) or (num_jobs < 1 and num_jobs != -1):
            raise ConfigError(
                "hydra.launcher.n_jobs must be at least 1, or -1 for one job a CPU. "
                f"Received: {num_jobs}."
            )
        return num_cpus if num_jobs == -1 else num_jobs


@contextmanager
def planned_sweep(line: CommandLine) -> Iterator[SweepPlan]:
    """Compose the sweep, and keep Hydra ready to compose its jobs.

    Raises:
        ConfigError: If Hydra refuses a key, option, value or file.
    """
    groups = known_groups(line)
    overrides = checked_overrides(line)
    primary, folder, overrides_of_path = search_path(line)
    with (
        warnings.catch_warnings(),
        explained(groups),
        initialize_config_dir(str(folder), job_name=PRIMARY, version_base="1.3"),
    ):
        # Where joblib's own plugin is installed, its schema has the name of kdist's file.
        warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/joblib' is validated")
        loader = GlobalHydra.instance().config_loader()
        with only_hydra(overrides):
            tree = loader.load_configuration(
                primary, [*overrides_of_path, *overrides], run_mode=RunMode.MULTIRUN
            )
        HydraConfig.instance().set_config(tree)
        section = OmegaConf.to_container(tree.get("sweep") or OmegaConf.create(), resolve=True)
        yield SweepPlan(
            tree=tree,
            loader=loader,
            groups=groups,
            settings=reading.read(SweepConfig, section, "sweep"),
            typed=tuple(parse_overrides(overrides)),
            files=line.files,
        )


def compose_job(plan: SweepPlan, overrides: Sequence[str], number: int, folder: Path) -> SweepJob:
    """Compose one job as a run of its own would be.

    Args:
        plan: The sweep.
        overrides: All of the job's overrides.
        number: Its number.
        folder: The sweep's folder.

    Raises:
        ConfigError: If Hydra refuses one of them.
    """
    with explained(plan.groups):
        taken = as_hydra_takes_them(overrides, plan.groups)
        with only_hydra(taken):
            tree = plan.loader.load_sweep_config(plan.tree, list(taken))
        with read_write(tree.hydra), open_dict(tree.hydra):
            tree.hydra.job.id = str(number)
            tree.hydra.job.num = number
        HydraConfig.instance().set_config(tree)
        run_dir = folder / str(tree.hydra.sweep.subdir)
        with read_write(tree.hydra.runtime), open_dict(tree.hydra.runtime):
            tree.hydra.runtime.output_dir = str(run_dir)
        HydraConfig.instance().set_config(tree)
    parsed = parse_overrides(taken)
    hydra = OmegaConf.masked_copy(tree, "hydra")
    composition = Composition(
        tree=without_hydra(tree),
        typed_keys=typed_keys(parsed),
        run_dir=run_dir.absolute(),
        is_default_dir=False,
        arguments=(*plan.files, *overrides),
    )
    values = _own_values(plan, overrides)
    return SweepJob(number=number, values=values, composition=composition, hydra=hydra)


def _own_values(plan: SweepPlan, overrides: Sequence[str]) -> dict[str, str]:
    """Return a job's values of those keys that were not typed with one value for all jobs."""
    last_typed = {each.key_or_group: each for each in plan.typed}
    shared = {key for key, each in last_typed.items() if not each.is_sweep_override()}
    return {
        each.key_or_group: _text(each)
        for each in parse_overrides(overrides)
        if each.key_or_group not in shared and not each.key_or_group.startswith("hydra")
    }


def _text(override: Override) -> Any:
    return "" if override.is_delete() else override.get_value_element_as_str()
