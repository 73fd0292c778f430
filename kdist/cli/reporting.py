"""How an error reaches the user: one message on stderr, and an exit code."""

import sys
import traceback

from kdist.errors import KdistError, exit_code_of


def report(error: KdistError, *, is_debug: bool) -> int:
    """Print what is wrong, with the traceback only for `debug=true`; return the exit code."""
    if is_debug:
        traceback.print_exception(error)
    sys.stderr.write(f"Error: {error}\n")
    sys.stderr.flush()
    return exit_code_of(error)
