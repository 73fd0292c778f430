"""What Hydra itself carries out: sweeps, and the flags that only show something."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from kdist.cli.arguments import CommandLine
from kdist.cli.composition import (
    Composition,
    checked_overrides,
    known_groups,
    parse_overrides,
    typed_keys,
    without_hydra,
)
from kdist.cli.groups import PRIMARY, conf_folder
from kdist.cli.hydra_errors import explained
from kdist.cli.reporting import report
from kdist.cli.run import run
from kdist.cluster.tf_config import VARIABLE
from kdist.errors import ConfigError, KdistError

_STOPPED = (130, 143)


def run_hydra(line: CommandLine) -> int:
    """Let Hydra sweep, or answer its own flags; return the exit code.

    Every job of a sweep runs, whatever became of the others, unless a signal stops the sweep.

    Returns:
        0; 1 if any job failed; 130 or 143 if a signal ended the sweep.

    Raises:
        ConfigError: If the sweep cannot be composed; then no job has run.
    """
    if line.is_sweep and VARIABLE in os.environ:
        raise ConfigError(
            f"A sweep starts tasks of its own. Received: -m with {VARIABLE} set. Unset it, or "
            "start each run by itself."
        )
    groups = known_groups(line)
    exit_codes: list[int] = []

    def job(tree: DictConfig) -> int:
        exit_code = _run_job(tree)
        exit_codes.append(exit_code)
        if exit_code in _STOPPED:
            raise SystemExit(exit_code)
        return exit_code

    decorated = hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name=PRIMARY)
    with explained(groups), _command_line(_hydra_argv(line)):
        try:
            decorated(job)()
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else 0
    return 1 if any(exit_codes) else 0


def _run_job(tree: DictConfig) -> int:
    """Run one job of a sweep; report what is wrong with it and return its exit code."""
    settings = HydraConfig.get()
    run_dir = Path(settings.runtime.output_dir)
    overrides = parse_overrides(list(settings.overrides.task))
    composition = Composition(
        tree=without_hydra(tree),
        typed_keys=typed_keys(overrides),
        run_dir=run_dir,
        is_default_dir=False,
    )
    try:
        return run(composition, os.environ, started_at_s=time.time())
    except KdistError as error:
        return report(error, is_debug=bool(tree.get("debug")))
    finally:
        with suppress(OSError):  # Hydra makes the folder before it is known to be needed.
            run_dir.rmdir()


def _hydra_argv(line: CommandLine) -> list[str]:
    """Return the command line as Hydra should read it."""
    argv = list(line.hydra_flags)
    if line.config_name:
        argv += ["--config-name", line.config_name]
    if line.config_dir:
        argv += ["--config-dir", str(line.config_dir.absolute())]
    overrides = checked_overrides(line)
    if not line.is_sweep:
        return [*argv, *overrides]
    own = {"hydra.output_subdir": "null", "hydra/job_logging": "disabled"}
    typed = {found.key_or_group for found in parse_overrides(overrides)}
    return [
        *argv,
        "--multirun",
        *(f"{key}={value}" for key, value in own.items() if key not in typed),
        *overrides,
    ]


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
