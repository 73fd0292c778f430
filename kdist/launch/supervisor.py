"""Watches the tasks of a run until all have ended, and sees to it that they do."""

import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from kdist.cluster.task import Task
from kdist.launch import forkserver, policy
from kdist.launch.console_pump import TaskOutput
from kdist.launch.journal import Journal
from kdist.launch.member import Member, parse_failure
from kdist.launch.outcome import Supervised, closing_warnings
from kdist.launch.policy import Cause, Decision, RestartPolicy, TaskEnd
from kdist.launch.request import TaskRequest
from kdist.launch.signals import Interrupted, SignalInbox
from kdist.launch.stopper import Stopper
from kdist.launch.task_process import TaskProcess
from kdist.launch.timing import Reason, Timing

_END_DEADLINE_S = 10.0


class Supervisor:
    """Starts tasks, passes on what they print and say, and ends all of them in any case."""

    def __init__(
        self,
        requests: Sequence[TaskRequest],
        *,
        chief: Task,
        start: Callable[[TaskRequest], TaskProcess],
        make_output: Callable[[Task], TaskOutput],
        journal: Journal,
        timing: Timing,
        restarts: RestartPolicy,
        on_cause: Callable[[Cause, TaskOutput], None],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember what to do.

        Args:
            requests: The tasks.
            chief: The one that leads; the run ends with it.
            start: Starts one task.
            make_output: Returns where the output of a task goes.
            journal: Takes events.
            timing: How long stopping tasks get.
            restarts: Who is started again after a loss.
            on_cause: Told once why the run failed, as soon as that is known.
            say: Takes a line for the user.
            clock: Seconds.
        """
        self._requests = requests
        self._chief = chief
        self._start = start
        self._make_output = make_output
        self._journal = journal
        self._restarts = restarts
        self._on_cause = on_cause
        self._say = say
        self._clock = clock
        self._now_s = clock()  # One time for all that is found together.
        self._signals = SignalInbox()
        self._members: list[Member] = []
        self._stopper = Stopper(timing, clock)
        self._cause: Cause | None = None
        self._stop_signal: int | None = None
        self._num_restarts = 0
        self._num_lost = 0

    def run(self) -> Supervised:
        """Start all tasks and return when none is left.

        Raises:
            TaskTimeoutError: If tasks could not be started in time.
            EnvironmentFault: If they could not be started at all.
        """
        with self._signals.opened():
            try:
                self._start_all()
                while running := [member for member in self._members if member.end is None]:
                    descriptors = [item for member in running for item in member.waitables()]
                    descriptors.append(self._signals.descriptor)
                    wait(descriptors, self._stopper.next_delay_s(running))
                    self._look_after(running)
            finally:
                self._end_all()
        self._announce_late()
        return Supervised(
            chief_exit_code=self._chief_exit_code,
            cause=self._cause,
            stop_signal=self._stop_signal,
            num_restarts=self._num_restarts,
            num_lost=self._num_lost,
            warnings=tuple(closing_warnings(self._members)),
        )

    def _start_all(self) -> None:
        for request in self._requests:
            try:
                with self._signals.raising():
                    process = self._start(request)
            except Interrupted as interrupt:
                forkserver.kill()  # It may be in the middle of an import that never ends.
                self._stop_signal = interrupt.number
                return
            self._members.append(Member(request, self._make_output(request.task), process))
            self._journal.record("task_started", task=str(request.task), pid=process.pid)

    def _look_after(self, running: Sequence[Member]) -> None:
        for number in self._signals.take():
            self._take_signal(number)
        self._now_s = self._clock()
        exits = [(member, member.process.exit_code()) for member in running]
        for member in running:  # After its exit code: all that it wrote before is there then.
            member.drain(self._take_event)
        for member, exit_code in exits:
            if exit_code is not None:
                self._take_end(member, exit_code)
        if self._stopper.reason is Reason.UNCLEAR and self._stopper.is_out_of_patience:
            self._announce(self._find_cause())
        self._stopper.enforce(self._members)

    def _take_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._stop_signal is None:
            self._stop_signal = number
            self._say(f"{name}: stopping. The tasks save and end; a second one kills them.")
            for member in self._members:
                if member.end is None:
                    member.is_stopped = True
                    member.is_terminated = number == signal.SIGTERM
                    member.process.send_signal(number)
            self._stopper.stop(Reason.SIGNAL)
        else:
            self._say(f"{name} again: killing the tasks.")
            self._stopper.stop(Reason.SECOND_SIGNAL)

    def _take_event(self, member: Member, event: str, fields: dict[str, Any]) -> None:
        if event == "run_folder_ready" and self._journal.folder is None:
            run_dir = Path(fields.get("run_dir") or member.request.run_dir)
            self._journal.open(run_dir)
            for each in self._members:
                each.output.open_log(run_dir / "logs")
        elif event == "task_ready":
            member.is_ready = True
            self._journal.record("task_ready", task=str(member.task), pid=member.process.pid)
        elif event == "task_rejoined":
            self._journal.record(event, **fields)
        elif event == "failed":
            member.failure = parse_failure(member.task, fields, self._now_s)
            member.output.note(member.failure.traceback.encode())
            self._stopper.expect_exit(member)
            if self._stopper.reason is Reason.UNCLEAR:
                self._fail()
        elif event == "finished":
            member.finished_code = int(fields.get("exit_code", 0))
            self._stopper.expect_exit(member)

    def _take_end(self, member: Member, exit_code: int) -> None:
        end = member.take_end(exit_code, self._now_s)
        self._record_end(end)
        decision = policy.decide(
            end,
            chief=self._chief,
            restarts=self._restarts,
            num_restarts=self._num_restarts,
            is_stopping=self._stopper.reason is not None,
        )
        if decision is Decision.RESTART_TASK:
            self._restart(member, end)
        elif decision is Decision.STOP_ALL:
            if policy.is_abnormal(end.exit_code):
                self._fail()
            else:
                self._stopper.stop(Reason.DONE)
        elif self._stopper.reason in (Reason.UNCLEAR, Reason.FAILED):
            self._fail()

    def _record_end(self, end: TaskEnd) -> None:
        is_lost = policy.is_abnormal(end.exit_code) and not end.was_stopped
        self._num_lost += is_lost and end.task != self._chief
        message = end.failure.message if end.failure else policy.describe_exit(end.exit_code)
        self._journal.record(
            "task_lost" if is_lost else "task_ended",
            task=str(end.task),
            exit_code=end.exit_code,
            message=message if is_lost else None,
        )

    def _restart(self, member: Member, end: TaskEnd) -> None:
        self._num_restarts += 1
        how = policy.describe_exit(end.exit_code)
        self._say(
            f"{member.task} {how}; started again "
            f"({self._num_restarts} of {self._restarts.max_restarts} restarts)."
        )
        member.restart(self._start(member.request))
        self._journal.record("task_restarted", task=str(member.task), pid=member.process.pid)

    def _fail(self) -> None:
        cause = self._find_cause()
        if cause is None or cause.is_consequence:
            self._stopper.stop(Reason.UNCLEAR)
        else:
            self._announce(cause)
            is_lost = self._chief_exit_code is not None
            self._stopper.stop(Reason.CHIEF_LOST if is_lost else Reason.FAILED)

    def _find_cause(self) -> Cause | None:
        failures = [member.failure for member in self._members if member.failure is not None]
        return policy.root_cause(failures, [m.end for m in self._members if m.end is not None])

    @property
    def _chief_exit_code(self) -> int | None:
        ends = [m.end for m in self._members if m.task == self._chief and m.end is not None]
        return ends[0].exit_code if ends else None

    def _announce_late(self) -> None:
        """Say what could not be told before all tasks had ended."""
        if self._stopper.reason is Reason.UNCLEAR:
            self._announce(self._find_cause())
        elif self._stop_signal is not None:  # What others say then is what a stop leads to.
            own = [m.failure for m in self._members if m.failure and m.task == self._chief]
            self._announce(policy.root_cause([f for f in own if not f.is_consequence], []))

    def _announce(self, cause: Cause | None) -> None:
        if cause is not None and self._cause is None and self._chief_exit_code != 0:
            self._cause = cause
            outputs = [m.output for m in self._members if m.task == cause.task]
            self._on_cause(cause, outputs[0])

    def _end_all(self) -> None:
        """Kill what still runs (after an error of our own) and close everything."""
        end_s = self._clock() + _END_DEADLINE_S
        left = [member for member in self._members if member.end is None]
        for member in left:
            member.process.kill()
        for member in self._members:
            if member in left:
                wait([member.process.sentinel], max(0.0, end_s - self._clock()))
                member.drain(lambda *_: None)
                exit_code = member.process.exit_code()
                member.is_stopped = True
                member.take_end(-signal.SIGKILL if exit_code is None else exit_code, self._clock())
            member.output.close()
