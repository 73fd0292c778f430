"""What runs first in every task process that the launcher starts."""

import contextlib
import ctypes
import faulthandler
import importlib
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import parent_process
from typing import Any

from kdist.config.importing import where_raised
from kdist.errors import ConfigError, PeerLostError, TrainingError, exit_code_of
from kdist.launch import forkserver
from kdist.launch.request import ALIVE, PipeLink, TaskRequest
from kdist.launch.signals import FORWARDED

_LONGEST_BEAT_S = 2.0
_PR_SET_PDEATHSIG = 1


def run_child(
    request: TaskRequest,
    task_main: str,
    output: Connection,
    events: Connection,
    environment: Mapping[str, str] | None,
) -> None:
    """Become the task: own session, output into the launcher's pipe, then the main function.

    Never returns. The process ends without running exit handlers, which TensorFlow's threads
    can make hang or crash.
    """
    os.setsid()
    _wake_at_end_of_forkserver()
    threading.Thread(target=_die_with_launcher, name="kdist-launcher-watch", daemon=True).start()
    link = PipeLink(events.fileno())
    _tell_of_signals(link)
    interval_s = beat_interval_s(request.config)
    threading.Thread(
        target=_show_life, args=(link, interval_s), name="kdist-life", daemon=True
    ).start()
    exit_code = 128 + signal.SIGINT
    try:
        exit_code = _run_task(task_main, request, link, output, environment)
        for number in FORWARDED:
            signal.signal(number, signal.SIG_IGN)
    except KeyboardInterrupt:
        pass
    except BaseException as error:  # What the task raises for a signal, which came as it ended.
        exit_code = int(getattr(error, "exit_code", TrainingError.exit_code))
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    _remove_generated_files()
    os._exit(exit_code)


def _run_task(
    task_main: str,
    request: TaskRequest,
    link: PipeLink,
    output: Connection,
    environment: Mapping[str, str] | None,
) -> int:
    """Run the task, tell the launcher how it ended, and return its exit code."""
    try:
        _settle_in(request, output, environment)
        exit_code = int(import_task_main(task_main)(request, link))
        if exit_code == 0:  # Unlike a process that somebody ended on the way.
            link.send("finished", exit_code=0)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as error:  # A task's own code returns; this is the user's.
        link.send("failed", **describe_failure(exit_call(error)))
        return TrainingError.exit_code
    except BaseException as error:
        link.send("failed", **describe_failure(error))
        return exit_code_of(error)
    return exit_code


def _settle_in(
    request: TaskRequest, output: Connection, environment: Mapping[str, str] | None
) -> None:
    """Take on this task's output, signals, environment and name."""
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
        os.dup2(output.fileno(), descriptor)
    output.close()
    faulthandler.enable(file=2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if environment is not None:
        os.environ.clear()  # noqa: TID251 - a task gets the launcher's environment of today
        os.environ.update(environment)  # noqa: TID251
    sys.argv = ["kdist", str(request.task)]
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def import_task_main(name: str) -> Callable[..., Any]:
    """Return the function called `module:function`.

    Raises:
        ConfigError: If there is none.
    """
    module_name, _, function_name = name.partition(":")
    function = getattr(importlib.import_module(module_name), function_name, None)
    if not callable(function):
        raise ConfigError(f"There is no function to run as a task. Received: {name}.")
    return function


def exit_call(error: SystemExit) -> TrainingError:
    """Return the error for a task in which sys.exit was called: no run ends well by it."""
    code = "" if error.code is None else repr(error.code)
    called = TrainingError(f"sys.exit({code}) was called{where_raised(error)}.")
    return called.with_traceback(error.__traceback__)


def describe_failure(error: BaseException) -> dict[str, Any]:
    """Return the fields of a `failed` event."""
    return {
        "type": type(error).__name__,
        "message": str(error),
        "is_consequence": getattr(error, "is_consequence", isinstance(error, PeerLostError)),
        "exit_code": exit_code_of(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _remove_generated_files() -> None:
    """Remove the modules that AutoGraph has written, which it would do in an exit handler."""
    for name, module in list(sys.modules.items()):
        if name.startswith("__autograph_generated_file"):
            with contextlib.suppress(OSError, AttributeError, TypeError):
                os.unlink(str(module.__file__))


def beat_interval_s(config: Mapping[str, Any]) -> float:
    """Return how often a task shows the launcher that it lives."""
    timeout_s = (config.get("cluster") or {}).get("heartbeat_timeout_s")
    return min(_LONGEST_BEAT_S, timeout_s / 4) if timeout_s else _LONGEST_BEAT_S


def _tell_of_signals(link: PipeLink) -> None:
    """Tell the launcher at once of a signal that asks to stop, whatever the main thread does.

    A handler in Python has to wait for the end of a step. By then another task may be lost, and
    all be started again.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # What a process that the user's code forks is told is none of the task's.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))

    def tell() -> None:
        while number := os.read(reader, 1):
            if number[0] in FORWARDED:
                link.send("signalled", number=number[0])

    threading.Thread(target=tell, name="kdist-signals", daemon=True).start()


def _show_life(link: PipeLink, interval_s: float) -> None:
    """Tell the launcher again and again that this process runs, whatever its main thread does."""
    while True:
        link.send(ALIVE)
        time.sleep(interval_s)


def _wake_at_end_of_forkserver() -> None:
    """Let the kernel continue this process, should it be stopped, when the fork server is gone.

    The fork server goes with its launcher. A stopped process would not notice that, and stay.
    """
    forkserver.leave_to_launcher()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def _die_with_launcher() -> None:
    """Kill this task's whole process group when the launcher is gone, however it went."""
    launcher = parent_process()
    if launcher is None:
        return
    awaited: list[Any] = [launcher.sentinel]
    try:
        if hasattr(os, "pidfd_open") and launcher.pid is not None:
            # Also when somebody else still holds the sentinel's pipe open.
            awaited.append(os.pidfd_open(launcher.pid))
        wait(awaited)
    except ProcessLookupError:
        pass
    except OSError:
        wait([launcher.sentinel])
    os.killpg(0, signal.SIGKILL)
