"""The command line, split into flags and overrides. Composes nothing and imports no Hydra."""

import argparse
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kdist.cli.groups import OPTIONAL_GROUPS
from kdist.errors import ConfigError

# Keys of every run, though files that read nothing do not name them, and keys that hold others.
_UNNAMED_KEYS = ("data.path=", "tuner.space=", "tuner.space.", "tuner.hypermodel.")
_GROUP_CHOICE = re.compile(r"\+{0,2}(?P<group>[\w/]+)=(?P<option>[^{].*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the user typed.

    Attributes:
        overrides: Everything of the form `key=value`, in order.
        config_name: Primary configuration file, if one was named.
        config_dir: A further folder of configuration files.
        wants_help: Whether to print the help text and do nothing else.
        wants_version: Whether to print the version and do nothing else.
        is_sweep: Whether every combination of values is a run of its own.
        hydra_flags: Flags that Hydra answers by itself, such as `--cfg job`.
    """

    overrides: tuple[str, ...] = ()
    config_name: str | None = None
    config_dir: Path | None = None
    wants_help: bool = False
    wants_version: bool = False
    is_sweep: bool = False
    hydra_flags: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """The flags that say where configuration files are."""
        name = ("--config-name", self.config_name) if self.config_name else ()
        return (*name, "--config-dir", str(self.config_dir)) if self.config_dir else name


def parse(argv: Sequence[str]) -> CommandLine:
    """Return the command line as flags and overrides.

    Raises:
        ConfigError: If a flag is unknown or lacks its value.
    """
    found = _parser().parse_intermixed_args(list(argv))
    flags: list[str] = []
    for name in ("cfg", "package", "info"):
        flags += [f"--{name}", getattr(found, name)] if getattr(found, name) else []
    for name in ("resolve", "hydra_help", "shell_completion"):
        flags += [f"--{name.replace('_', '-')}"] if getattr(found, name) else []
    return CommandLine(
        overrides=tuple(found.overrides),
        config_name=found.config_name,
        config_dir=found.config_dir,
        wants_help=found.help,
        wants_version=found.version,
        is_sweep=found.multirun or "hydra.mode=MULTIRUN" in found.overrides,
        hydra_flags=tuple(flags),
    )


def as_hydra_takes_them(
    overrides: Sequence[str], groups: Mapping[str, Collection[str]]
) -> tuple[str, ...]:
    """Return the overrides in the form that Hydra accepts.

    The defaults list names every known group, so Hydra would refuse the plus of `+group=option`:
    it is dropped. An optional group set to null is left out, which means the same. And `data.path`,
    a search's space and its hypermodel may be typed, whether or not a file names them.

    Raises:
        ConfigError: If a group that a run needs is set to null.
    """
    cleaned = []
    for override in overrides:
        group, option = group_choice(override, groups)
        if group is None:
            is_unnamed = override.startswith(_UNNAMED_KEYS)
            cleaned.append(f"++{override}" if is_unnamed else override)
        elif option != "null":
            cleaned.append(f"{group}={option}")
        elif group not in OPTIONAL_GROUPS:
            raise ConfigError(
                f"{group} needs one of its options: {', '.join(groups[group])}. "
                f"Received: {override}."
            )
    return tuple(cleaned)


def group_choice(override: str, groups: Collection[str]) -> tuple[str | None, str]:
    """Return group and option that an override chooses; no group if it is none of `groups`."""
    match = _GROUP_CHOICE.fullmatch(override)
    if match is None or match["group"] not in groups:
        return None, ""
    return match["group"], match["option"]


def to_train(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of a plan as those of the run that it plans."""
    plain = {each: each.lstrip("+") for each in arguments}
    kept = tuple(each for each in arguments if not plain[each].startswith(("command=", "plan.")))
    is_typed = any(each.startswith("command=") for each in plain.values())
    return kept if is_typed else (*kept, "command=train")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are kdist's own."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise ConfigError(f"The command line cannot be read: {message}. See --help.")


def _parser() -> _Parser:
    parser = _Parser(prog="kdist", add_help=False, allow_abbrev=False)
    yes_no: dict[str, Any] = {"action": "store_true"}
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--help", "-h", **yes_no)
    parser.add_argument("--version", **yes_no)
    parser.add_argument("--run", "-r", **yes_no)
    parser.add_argument("--multirun", "-m", **yes_no)
    parser.add_argument("--config-name", "-cn")
    parser.add_argument("--config-dir", "-cd", type=Path)
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--package", "-p")
    parser.add_argument("--resolve", **yes_no)
    parser.add_argument("--info", "-i", nargs="?", const="all")
    parser.add_argument("--hydra-help", **yes_no)
    parser.add_argument("--shell-completion", "-sc", **yes_no)
    return parser
