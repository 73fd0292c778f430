"""One task process: started, listened to, signalled, and killed with everything it started."""

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from kdist.cluster.task import Task
from kdist.launch import forkserver
from kdist.launch.child import run_child
from kdist.launch.request import TaskRequest

_START_DEADLINE_S = 180.0
# What multiprocessing says of a process whose end nobody has seen.
_UNSEEN = 255


class TaskProcess:
    """A started task. Its pipes are non-blocking; `close` ends the launcher's side of it."""

    def __init__(
        self, task: Task, process: ForkServerProcess, output: Connection, events: Connection
    ) -> None:
        """Take over a started process and the read ends of its pipes."""
        assert process.pid is not None
        self.task = task
        self.pid: int = process.pid
        self._process = process
        self._output = output
        self._events = events
        self._killed_as_orphan = False

    @classmethod
    def start(
        cls,
        request: TaskRequest,
        *,
        task_main: str,
        environment: Mapping[str, str] | None = None,
        preload: Sequence[str] = forkserver.PRELOAD,
    ) -> "TaskProcess":
        """Start a task in a session of its own.

        Args:
            request: What it is asked to do.
            task_main: Its main function, as `module:function`.
            environment: Its environment; the fork server's, unless given.
            preload: What the fork server imports, if it does not run yet.

        Raises:
            TaskTimeoutError: If the fork server does not get ready.
            EnvironmentFault: If it dies.
        """
        context = forkserver.context(preload)
        output, output_end = context.Pipe(duplex=False)
        events, events_end = context.Pipe(duplex=False)
        process = context.Process(
            target=run_child,
            args=(request, task_main, output_end, events_end, environment),
            name=str(request.task),
        )
        try:
            forkserver.start(process, _START_DEADLINE_S)
        except BaseException:
            output.close()
            events.close()
            raise
        finally:
            output_end.close()
            events_end.close()
        for pipe in (output, events):
            os.set_blocking(pipe.fileno(), False)
        return cls(request.task, process, output, events)

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable when the process has ended."""
        return self._process.sentinel

    @property
    def output_descriptor(self) -> int:
        """Where what the task prints can be read; -1 after `close`."""
        return -1 if self._output.closed else self._output.fileno()

    @property
    def events_descriptor(self) -> int:
        """Where the task's events can be read, a JSON object a line; -1 after `close`."""
        return -1 if self._events.closed else self._events.fileno()

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; `None` while the process runs.

        Only the fork server learns how a process ends. When that is gone, the process is killed.
        """
        with forkserver.lock:
            code = self._process.exitcode
        if code != _UNSEEN or self._killed_as_orphan:
            return -signal.SIGKILL if self._killed_as_orphan else code
        with contextlib.suppress(ProcessLookupError):  # It has really ended so.
            os.killpg(self.pid, signal.SIGKILL)
            self._killed_as_orphan = True
            return -signal.SIGKILL
        return code

    def is_stopped(self) -> bool:
        """Whether the process is stopped (SIGSTOP), where the system tells."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[:1] in (["T"], ["t"])

    def send_signal(self, number: int) -> None:
        """Send a signal to the task itself; one that has ended is no error."""
        if self.exit_code() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the task and all that it started. Right after its end this clears up after it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.send_signal(signal.SIGKILL)  # It may not lead a process group yet.

    def close(self) -> None:
        """Give up the pipes; may be called again. The process must have ended."""
        for pipe in (self._output, self._events):
            pipe.close()


def read_available(descriptor: int) -> tuple[bytes, bool]:
    """Return what can be read without waiting, and whether the other side has closed."""
    chunks = []
    while True:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return b"".join(chunks), False
        except OSError:
            return b"".join(chunks), True
        if not chunk:
            return b"".join(chunks), True
        chunks.append(chunk)
        if sum(map(len, chunks)) > 1 << 22:  # Let others have their turn.
            return b"".join(chunks), False
