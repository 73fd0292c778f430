"""How answers and errors reach the user: text on stdout, one message on stderr, an exit code."""

import sys
import traceback
from typing import TextIO

from kdist.errors import EnvironmentFault, KdistError, exit_code_of


def say(text: str, stream: TextIO | None = None) -> None:
    """Write to stdout, or to `stream`, at once; one that nobody reads any more ends nothing."""
    from kdist.launch.console_pump import TerminalEcho

    TerminalEcho(stream).write(text)


def answer(text: str) -> None:
    """Write what was asked for to stdout; one that nobody reads any more is told nothing.

    Raises:
        EnvironmentFault: If stdout takes no more, such as a file on a full disk.
    """
    from kdist.launch.console_pump import TerminalEcho

    echo = TerminalEcho()
    echo.write(text)
    if echo.error is not None and not isinstance(echo.error, BrokenPipeError):
        raise EnvironmentFault(
            f"The answer could not be written to stdout. Received: {echo.error.strerror}. "
            "Make room there, or send it elsewhere."
        ) from echo.error


def report(error: KdistError, *, is_debug: bool) -> int:
    """Print what is wrong, with the traceback only for `debug=true`; return the exit code."""
    shown = "".join(traceback.format_exception(error)) if is_debug else ""
    say(f"{shown}Error: {error}\n", sys.stderr)
    return exit_code_of(error)
