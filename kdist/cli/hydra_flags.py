"""What Hydra itself carries out: the flags that only show something."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import hydra
from omegaconf import DictConfig

from kdist.cli.arguments import CommandLine
from kdist.cli.composition import checked_overrides, known_groups
from kdist.cli.groups import PRIMARY, conf_folder
from kdist.cli.hydra_errors import explained, only_hydra
from kdist.cli.reporting import answer


def answer_flags(line: CommandLine) -> int:
    """Let Hydra answer its own flags (`--cfg`, `--info`, ...); return the exit code.

    Raises:
        ConfigError: If the configuration cannot be composed.
    """

    def shows_only(tree: DictConfig) -> None:
        """Never called: each of these flags makes Hydra print something and return."""

    decorated = hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name=PRIMARY)
    with explained(known_groups(line)), _command_line(_hydra_argv(line)):
        shown, exit_code = io.StringIO(), 0
        try:
            with redirect_stdout(shown), only_hydra(line.overrides):
                decorated(shows_only)()
        except SystemExit as stop:
            exit_code = stop.code if isinstance(stop.code, int) else 0
    answer(shown.getvalue())
    return exit_code


def _hydra_argv(line: CommandLine) -> list[str]:
    """Return the command line as Hydra should read it."""
    argv = list(line.hydra_flags)
    if line.config_name:
        argv += ["--config-name", line.config_name]
    if line.config_dir:
        argv += ["--config-dir", str(line.config_dir.absolute())]
    return [*argv, *(["--multirun"] if line.is_sweep else []), *checked_overrides(line)]


@contextmanager
def _command_line(argv: list[str]) -> Iterator[None]:
    """Show Hydra another command line, and have it raise its errors instead of printing them."""
    before, sys.argv = sys.argv, [sys.argv[0], *argv]
    full_error = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if full_error is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
