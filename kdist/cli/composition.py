"""From the command line to one configuration tree, by Hydra's compose API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, open_dict

from kdist.cli.arguments import CommandLine, as_hydra_takes_them, group_choice
from kdist.cli.groups import PRIMARY, conf_folder, options_of_groups
from kdist.cli.hydra_errors import explained, only_hydra
from kdist.config.reading import shown
from kdist.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Composition:
    """One composed configuration, not yet checked.

    Attributes:
        tree: The configuration, interpolations unresolved, without Hydra's own part.
        typed_keys: Dotted keys whose values the user typed.
        run_dir: Where the run folder goes.
        is_default_dir: Whether that place was chosen by default, so that another name will do.
        arguments: What to type for it alone, flags included.
        line: The command line; `None` where Hydra has taken it apart.
    """

    tree: DictConfig
    typed_keys: tuple[str, ...]
    run_dir: Path
    is_default_dir: bool
    arguments: tuple[str, ...] = ()
    line: CommandLine | None = None


def compose_run(line: CommandLine) -> Composition:
    """Compose the configuration of one run. Makes nothing on disk.

    Raises:
        ConfigError: If Hydra refuses a key, option, value or file.
    """
    groups = known_groups(line)
    overrides = checked_overrides(line)
    primary, folder, overrides_of_path = search_path(line)
    with explained(groups):
        start = initialize_config_dir(str(folder), job_name=PRIMARY, version_base="1.3")
        with start, only_hydra(line.overrides):
            tree = compose(primary, [*overrides_of_path, *overrides], return_hydra_config=True)
        HydraConfig.instance().set_config(tree)
        run_dir = Path(tree.hydra.run.dir).absolute()
    parsed = parse_overrides(overrides)
    return Composition(
        tree=without_hydra(tree),
        typed_keys=typed_keys(parsed),
        run_dir=run_dir,
        is_default_dir=not any(found.key_or_group == "hydra.run.dir" for found in parsed),
        arguments=(*line.files, *line.overrides),
        line=line,
    )


def known_groups(line: CommandLine) -> Mapping[str, tuple[str, ...]]:
    """Return the options of each group that this command line can choose from."""
    return options_of_groups(conf_folder(), *([line.config_dir] if line.config_dir else []))


def checked_overrides(line: CommandLine) -> tuple[str, ...]:
    """Return the overrides as Hydra takes them.

    Raises:
        ConfigError: If one cannot be read, or chooses a group where a finished run's
            configuration is the start: it holds values, not groups.
    """
    shipped = options_of_groups(conf_folder())
    parse_overrides(line.overrides)
    if not _starts_from_saved_run(line):
        return as_hydra_takes_them(line.overrides, shipped)
    for override in line.overrides:
        group, option = group_choice(override, shipped)
        if group is not None:
            name = "name" if group == "strategy" else "_target_"
            raise ConfigError(
                f"A saved configuration takes values, not groups. Received: {override}. Set single "
                f"values, as in {group}.{name}=..., or start from the groups: "
                f"python -m kdist {group}={option}."
            )
    return as_hydra_takes_them(line.overrides, {})


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Return the overrides in parsed form.

    Raises:
        ConfigError: Naming the first one that cannot be read.
    """
    parser = OverridesParser.create()
    parsed = []
    for override in overrides:
        try:
            with only_hydra([override]):
                parsed += parser.parse_overrides([override])
        except OverrideParseException as error:
            raise ConfigError(
                f"An override must read key=value. Received: {shown(repr(override))}. Quote values "
                "that hold special characters, as in 'key=\"a, b\"'."
            ) from error
    return parsed


def typed_keys(overrides: Sequence[Override]) -> tuple[str, ...]:
    """Return the dotted keys whose values were typed, those inside typed mappings included.

    A group that was chosen counts as the key of its name.
    """
    keys: list[str] = []
    for override in overrides:
        key = override.key_or_group
        if not override.is_delete() and not key.startswith("hydra"):
            keys += _leaves(key, override.value())
    return tuple(dict.fromkeys(keys))


def without_hydra(tree: DictConfig) -> DictConfig:
    """Return the tree without Hydra's own part."""
    with open_dict(tree):
        tree.pop("hydra", None)
    return tree


def _leaves(key: str, value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [leaf for name, entry in value.items() for leaf in _leaves(f"{key}.{name}", entry)]
    return [key]


def search_path(line: CommandLine) -> tuple[str, Path, list[str]]:
    """Return the primary file's name, its folder, and the override that adds the other folder."""
    primary, shipped = line.config_name or PRIMARY, conf_folder()
    if line.config_dir is None:
        return primary, shipped, []
    folder = line.config_dir.absolute()
    if not folder.is_dir():
        raise ConfigError(f"--config-dir must be a folder. Received: {line.config_dir}.")
    if any("hydra.searchpath=" in override for override in line.overrides):
        raise ConfigError("Use either --config-dir or hydra.searchpath. Received: both.")
    is_shipped = (shipped / f"{primary}.yaml").is_file()
    main, other = (shipped, folder) if is_shipped else (folder, shipped)
    return primary, main, [f"hydra.searchpath=[file://{other}]"]


def _starts_from_saved_run(line: CommandLine) -> bool:
    """Return whether the primary file is a finished run's: it has no defaults list."""
    primary, folder, _ = search_path(line)
    file = (folder / primary).with_suffix(".yaml")
    if not file.is_file():
        return False
    with explained({}), file.open(encoding="utf-8") as opened:
        content = yaml.safe_load(opened)
    return isinstance(content, dict) and "defaults" not in content
