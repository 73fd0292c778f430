"""One task of a supervised run: its process, what it printed and what it said."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kdist import errors
from kdist.cluster.task import Task
from kdist.launch.console_pump import TaskOutput
from kdist.launch.policy import Failure, TaskEnd
from kdist.launch.request import ALIVE, TaskRequest
from kdist.launch.task_process import TaskProcess, read_available

EventHandler = Callable[["Member", str, dict[str, Any]], None]


@dataclass
class Member:
    """A task through all its processes (a restart gives it a new one)."""

    request: TaskRequest
    output: TaskOutput
    process: TaskProcess
    end: TaskEnd | None = None
    failure: Failure | None = None
    finished_code: int | None = None
    is_ready: bool = False
    is_stopped: bool = False  # The launcher has told it to end, in one way or another.
    is_terminated: bool = False  # ... by SIGTERM.
    is_signalled: bool = False  # It has got SIGINT or SIGTERM, from the launcher or somebody else.
    is_killed: bool = False
    is_restarted: bool = False
    leave_by_s: float | None = None
    heard_at_s: float = 0.0  # When it last showed that it lives.
    silence_s: float | None = None  # How long it had not, when it was killed for that.
    _events: bytes = field(default=b"", repr=False)
    _closed: set[int] = field(default_factory=set[int], repr=False)

    @property
    def task(self) -> Task:
        """Which task this is."""
        return self.request.task

    @property
    def is_frozen(self) -> bool:
        """Whether silence means that it hangs.

        Before a task is ready it may wait in TensorFlow, which keeps Python's threads waiting,
        too. Then it must have been stopped.
        """
        return self.is_ready or self.process.is_stopped()

    def waitables(self) -> list[int]:
        """Return the descriptors that show news of a task that has not ended."""
        if self.end is not None:
            return []
        pipes = (self.process.output_descriptor, self.process.events_descriptor)
        return [self.process.sentinel, *(pipe for pipe in pipes if pipe not in self._closed)]

    def drain(self, on_event: EventHandler, now_s: float) -> None:
        """Take in everything that the task has written so far."""
        if self.end is not None:
            return
        data = self._read(self.process.events_descriptor)
        if data:
            self.heard_at_s = now_s
        *lines, self._events = (self._events + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if (event := message.pop("event")) != ALIVE:
                on_event(self, event, message)
        if data := self._read(self.process.output_descriptor):
            self.output.feed(data)

    def take_end(self, exit_code: int, now_s: float) -> TaskEnd:
        """Record the end of the process and clear up after it; it must have been drained."""
        self.process.kill()
        self.process.close()
        left_early = exit_code == 0 and self.finished_code is None and not self.is_stopped
        code = 1 if left_early else exit_code
        self.end = self._end(code if self.finished_code is None else self.finished_code, now_s)
        if left_early:
            self.end = replace(self.end, left_early=True)
        return self.end

    def expected_end(self, now_s: float) -> TaskEnd:
        """Return the end of a task that has said that it failed, and has not left yet."""
        return self._end(1 if self.failure is None else self.failure.exit_code, now_s)

    def _end(self, exit_code: int, now_s: float) -> TaskEnd:
        return TaskEnd(
            task=self.task,
            exit_code=exit_code,
            at_s=now_s,
            failure=self.failure,
            was_ready=self.is_ready or self.is_restarted,
            was_stopped=self.is_stopped,
            was_signalled=self.is_signalled,
            silence_s=self.silence_s,
        )

    def restart(self, process: TaskProcess, now_s: float) -> None:
        """Go on with a new process."""
        self.process = process
        self.is_restarted = True
        self.heard_at_s = now_s
        self.end = self.failure = self.finished_code = self.leave_by_s = self.silence_s = None
        self.is_ready = self.is_stopped = self.is_killed = False
        self.is_terminated = self.is_signalled = False
        self._events = b""
        self._closed = set()

    def _read(self, descriptor: int) -> bytes:
        if descriptor in self._closed:
            return b""
        data, is_closed = read_available(descriptor)
        if is_closed:
            self._closed.add(descriptor)
        return data


def parse_failure(task: Task, fields: Mapping[str, Any], at_s: float) -> Failure:
    """Return what a `failed` event says; the exit code follows from the type unless given."""
    kind = str(fields.get("type", "Error"))
    known = getattr(getattr(errors, kind, None), "exit_code", 1)
    return Failure(
        task=task,
        type=kind,
        message=str(fields.get("message", "")),
        at_s=at_s,
        is_consequence=bool(fields.get("is_consequence", False)),
        exit_code=int(fields.get("exit_code", known)),
        traceback=str(fields.get("traceback") or ""),
    )
