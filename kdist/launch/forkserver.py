"""The process that tasks are forked from: it has imported TensorFlow once for all of them."""

import atexit
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from kdist.errors import EnvironmentFault, TaskTimeoutError

PRELOAD = ("kdist.launch.preload",)
# How long a killed server may refuse before it is gone.
_GONE_WITHIN_S, _POLL_S = 5.0, 0.01

# multiprocessing looks at all processes whenever one is started, and an exit code can be read only
# once: runs that are supervised in several threads take turns.
lock = threading.RLock()


def context(preload: Sequence[str] = PRELOAD) -> ForkServerContext:
    """Return the context whose processes are forked from a server that imported `preload`.

    A server that already runs is used as it is.
    """
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(["kdist.launch.detach", *preload])
    return chosen


def start(process: ForkServerProcess, deadline_s: float) -> None:
    """Start a process without running the user's main module in it again.

    The first start waits until the server has imported its modules.

    Raises:
        TaskTimeoutError: If that took longer than `deadline_s`.
        EnvironmentFault: If the server died of it, or could not be prepared.
    """
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        kill()

    timer = threading.Timer(deadline_s, give_up)
    timer.daemon = True
    timer.start()
    _end_at_exit()
    try:
        with _hidden_main():
            _start_on_living_server(process)
    except (EOFError, OSError) as error:
        if is_late.is_set():
            raise TaskTimeoutError(
                f"Gave up after {deadline_s:g} s waiting for the import of TensorFlow. "
                'Try `python -c "import tensorflow, keras"`.'
            ) from error
        if not isinstance(error, EOFError | ConnectionError):
            raise EnvironmentFault(
                "Could not prepare the process that starts tasks, which needs a socket in the "
                f"folder for temporary files. Received: {error}; {tempfile.tempdir}. Let TMPDIR "
                "name a folder that exists, can be written and has a short path, such as /tmp."
            ) from error
        raise EnvironmentFault(
            "The process that imports TensorFlow died before it could start a task. "
            f'Try `python -c "import tensorflow, keras"`. Received: {error!r}.'
        ) from error
    finally:
        timer.cancel()


def end() -> None:
    """End the server and wait for it; the next start makes a new one. May be called again.

    Does nothing while somebody's processes still depend on it.
    """
    server = _server()
    if getattr(server, "_forkserver_pid", None) is None or multiprocessing.active_children():
        return
    kill()
    with contextlib.suppress(Exception):
        server._stop()


@functools.cache
def _end_at_exit() -> None:
    atexit.register(end)


def kill() -> None:
    """Kill the server at once, whatever it is importing; may be called from any thread."""
    pid = getattr(_server(), "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _start_on_living_server(process: ForkServerProcess) -> None:
    """Start a process; a server that was killed, and has not quite gone, is asked until it is.

    multiprocessing makes a new server only once the old one can be reaped.
    """
    end_s = time.monotonic() + _GONE_WITHIN_S
    while True:
        try:
            process.start()
        except ConnectionRefusedError:
            if time.monotonic() > end_s:
                raise
            time.sleep(_POLL_S)
        else:
            return


def leave_to_launcher() -> None:
    """Let the server end with its launcher, even while this process lives. For its children.

    multiprocessing gives every child the pipe whose end tells the server that nobody needs it.
    """
    with contextlib.suppress(Exception):
        os.close(_server()._forkserver_alive_fd)
        _server()._forkserver_alive_fd = None


def _server() -> Any:
    return getattr(forkserver, "_forkserver", None)


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Keep multiprocessing from telling the child where the user's main module is."""
    with lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
