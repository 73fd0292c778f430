"""The command line: Hydra, the environment and exit codes.

What only answers (`--help`, `--version`) imports no Hydra, and nothing here imports TensorFlow
unless this process is itself a task.
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

import kdist
from kdist.cli.arguments import CommandLine, parse
from kdist.cli.groups import conf_folder, options_of_groups
from kdist.cli.help_text import help_text
from kdist.cli.reporting import answer, report, say
from kdist.errors import EnvironmentFault, KdistError
from kdist.launch.standard_streams import open_closed_streams

_STARTED_AT_S = time.time()
_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Do what the command line says; return the exit code (see `--help`)."""
    try:
        return _dispatch(parse(argv))
    except KdistError as error:
        return report(error, is_debug="debug=true" in (entry.lower() for entry in argv))
    except KeyboardInterrupt:
        say("Stopped.\n", sys.stderr)
        return _INTERRUPTED


def console_main() -> NoReturn:
    """Run the command line of this process and exit."""
    open_closed_streams()
    sys.exit(main(sys.argv[1:]))


def _dispatch(line: CommandLine) -> int:
    if line.wants_help:
        folders = [conf_folder(), *([line.config_dir] if line.config_dir else [])]
        answer(help_text(options_of_groups(*folders)))
        return 0
    if line.wants_version:
        answer(f"kdist {kdist.__version__}\n")
        return 0
    _check_current_folder()
    if line.hydra_flags:
        from kdist.cli.hydra_flags import answer_flags

        return answer_flags(line)
    if line.is_sweep:
        from kdist.cli.sweep import run_sweep

        return run_sweep(line, os.environ)
    from kdist.cli.composition import compose_run
    from kdist.cli.run import run

    return run(compose_run(line), os.environ, started_at_s=_STARTED_AT_S)


def _check_current_folder() -> None:
    """Refuse a current folder that is gone: run folders and the user's modules are found by it."""
    try:
        os.getcwd()
    except OSError as error:
        raise EnvironmentFault(
            f"The current folder cannot be read ({error.strerror}); was it deleted or moved? "
            f"Received: {os.environ.get('PWD', 'no PWD')}. Change into a folder that exists."
        ) from error
