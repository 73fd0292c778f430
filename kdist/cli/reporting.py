"""How an error reaches the user: one message on stderr, and an exit code."""

import sys
import traceback
from typing import TextIO

from kdist.errors import KdistError, exit_code_of


def say(text: str, stream: TextIO | None = None) -> None:
    """Write to stdout, or to `stream`, at once; one that nobody reads any more ends nothing."""
    from kdist.launch.console_pump import TerminalEcho

    TerminalEcho(stream).write(text)


def report(error: KdistError, *, is_debug: bool) -> int:
    """Print what is wrong, with the traceback only for `debug=true`; return the exit code."""
    if is_debug:
        traceback.print_exception(error)
    sys.stderr.write(f"Error: {error}\n")
    sys.stderr.flush()
    return exit_code_of(error)
