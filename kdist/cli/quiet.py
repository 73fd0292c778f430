"""Hiding what native code prints while it is loaded."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_stderr(*, is_hidden: bool) -> Iterator[None]:
    """Send everything that this process writes to stderr nowhere, native code included."""
    if not is_hidden:
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
