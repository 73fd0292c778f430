"""One process of a machine at a time does what others can then reuse."""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kdist.errors import TaskTimeoutError

_POLL_S = 0.1


@contextmanager
def machine_lock(name: str, *, timeout_s: float, folder: str | None = None) -> Iterator[None]:
    """Hold the machine's lock of that name, for this user.

    The lock ends with the process that holds it, however that ends.

    Args:
        name: What is locked; becomes part of a file name.
        timeout_s: How long to wait for another process.
        folder: Where the lock file lies; the machine's temporary folder by default.

    Raises:
        TaskTimeoutError: If another process holds the lock for longer.
    """
    path = Path(folder or tempfile.gettempdir()) / f"kdist-{os.getuid()}-{name}.lock"
    deadline_s = time.monotonic() + timeout_s
    with path.open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise TaskTimeoutError(
                        f"Gave up after {timeout_s:g} s waiting for another process of this "
                        f"machine that downloads {name} (it holds {path})."
                    ) from None
                time.sleep(_POLL_S)
        yield
