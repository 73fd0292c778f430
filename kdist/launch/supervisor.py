"""Watches the tasks of one attempt until all have ended, and sees to it that they do."""

import signal
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from kdist.cluster.task import TaskType
from kdist.launch import forkserver, policy, restarts
from kdist.launch.member import Member, parse_failure
from kdist.launch.outcome import AttemptEnd, Restart, closing_warnings
from kdist.launch.policy import Cause, TaskEnd
from kdist.launch.request import TaskRequest
from kdist.launch.restarts import Decision
from kdist.launch.signals import Interrupted
from kdist.launch.stopper import Stopper
from kdist.launch.surroundings import Surroundings
from kdist.launch.task_events import TaskEvents
from kdist.launch.timing import Reason

_END_DEADLINE_S = 10.0
# Who signals every process of a run signals its launcher, too: that is one.
_ECHO_S = 1.0


class Supervisor:
    """Starts tasks, passes on what they print and say, and ends all of them in any case."""

    def __init__(self, requests: Sequence[TaskRequest], around: Surroundings) -> None:
        """Remember the tasks of the attempt; the chief is among them."""
        self._requests = requests
        self._chief = requests[0].spec.chief
        self._around = around
        self._clock = around.clock
        self._now_s = around.clock()  # One time for all that is found together.
        self._members: list[Member] = []
        self._stopper = Stopper(around.timing, around.clock)
        self._settled_at_s: float | None = None  # When consequences must do for a cause.
        self._cause: Cause | None = None
        self._stop_signal: int | None = None
        self._echo_until_s = 0.0
        self._restart: Restart | None = None
        self._events = TaskEvents(
            self._members,
            self._chief,
            around,
            on_signal=self._take_told_signal,
            on_failure=self._take_failure,
            on_finish=self._stopper.expect_exit,
        )

    def run(self) -> AttemptEnd:
        """Start all tasks and return when none is left.

        Raises:
            TaskTimeoutError: If tasks could not be started in time.
            EnvironmentFault: If they could not be started at all.
        """
        try:
            self._start_all()
            while running := [member for member in self._members if member.end is None]:
                descriptors = [item for member in running for item in member.waitables()]
                descriptors.append(self._around.signals.descriptor)
                settled = [] if self._settled_at_s is None else [self._settled_at_s]
                wait(descriptors, self._stopper.next_delay_s(running, *settled))
                self._look_after(running)
                if self._settled_at_s is not None and all(m.end for m in self._members):
                    self._judge(is_final=True)
        finally:
            self._end_all()
        self._announce_late()
        return AttemptEnd(
            chief_exit_code=self._chief_exit_code,
            cause=self._cause,
            stop_signal=self._stop_signal,
            restart=self._restart if self._stop_signal is None else None,
            warnings=tuple(closing_warnings(self._members)),
        )

    def _start_all(self) -> None:
        for request in self._requests:
            try:
                with self._around.signals.raising():
                    process = self._around.start(request)
            except Interrupted as interrupt:
                forkserver.kill()  # It may be in the middle of an import that never ends.
                self._stop_signal = interrupt.number
                self._stopper.stop(Reason.SECOND_SIGNAL)
                return
            member = Member(request, self._around.output_of(request.task), process)
            member.heard_at_s = self._clock()
            self._members.append(member)
            self._record_start("task_restarted" if request.attempt else "task_started", member)

    def _record_start(self, event: str, member: Member) -> None:
        task, attempt = str(member.task), member.request.attempt or None
        self._around.journal.record(event, task=task, pid=member.process.pid, attempt=attempt)

    def _look_after(self, running: Sequence[Member]) -> None:
        for number in self._around.signals.take():
            self._take_signal(number)
        self._now_s = self._clock()
        exits = [(member, member.process.exit_code()) for member in running]
        for member in running:  # After its exit code: all that it wrote before is there then.
            member.drain(self._events.take, self._now_s)
        for member, exit_code in restarts.stops_first(
            (member, code) for member, code in exits if code is not None
        ):
            self._take_end(member, exit_code)
        if self._settled_at_s is not None and self._now_s >= self._settled_at_s:
            self._judge(is_final=True)
        self._stopper.enforce(self._members)

    def _take_signal(self, number: int, *, told: Member | None = None) -> None:
        name = signal.Signals(number).name
        if self._stop_signal is None:
            self._stop_signal = number
            if told is not None:
                name += f" to {told.task}"
                self._echo_until_s = self._clock() + _ECHO_S
            self._around.say(f"{name}: stopping. The tasks save and end; a second one kills them.")
            for member in self._members:
                if member.end is None:
                    member.is_stopped = True
                    member.is_terminated = number == signal.SIGTERM
                    if not member.is_signalled:
                        member.is_signalled = True
                        member.process.send_signal(number)
            self._stopper.stop(Reason.SIGNAL)
        elif self._clock() < self._echo_until_s:
            self._echo_until_s = 0.0
        else:
            self._around.say(f"{name} again: killing the tasks.")
            self._stopper.stop(Reason.SECOND_SIGNAL)

    def _take_told_signal(self, member: Member, number: int) -> None:
        if restarts.heeds_stop(self._stopper.reason):  # Told by somebody else: so are all.
            self._take_signal(number, told=member)

    def _take_failure(self, member: Member, fields: Mapping[str, Any]) -> None:
        member.failure = parse_failure(member.task, fields, self._now_s)
        member.output.note(member.failure.traceback.encode("utf-8", "backslashreplace"))
        self._stopper.expect_exit(member)
        if self._settled_at_s is not None:
            self._judge()

    def _take_end(self, member: Member, exit_code: int) -> None:
        end = member.take_end(exit_code, self._now_s)
        self._around.journal.record_end(end, is_over=self._around.budget.is_over)
        number = restarts.stop_signal_of(end)
        if number is not None and member.finished_code is None:
            self._take_told_signal(member, number)
            return
        if policy.is_abnormal(end.exit_code):
            self._judge()
        elif self._decide(end) is Decision.STOP_ALL:
            self._stopper.stop(Reason.DONE)

    def _judge(self, *, is_final: bool = False) -> None:
        """Act on what has gone wrong, once its cause is known, or cannot be waited for."""
        while (cause := self._find_cause()) is not None and self._restart is None:
            if cause.is_consequence and not is_final:
                if self._settled_at_s is None and self._stopper.reason is None:
                    self._settled_at_s = self._now_s + self._around.timing.settle_s
                return
            self._settled_at_s = None
            member = next(m for m in self._members if m.task == cause.task)
            decision = self._decide(member.end or member.expected_end(self._now_s))
            if decision is Decision.RESTART_TASK and member.end is not None:
                self._restart_task(member)
                continue
            if decision in (Decision.RESTART_ALL, Decision.RESTART_WITHOUT):
                self._restart_all(member, is_smaller=decision is Decision.RESTART_WITHOUT)
            elif decision is Decision.STOP_ALL or self._stopper.reason is Reason.FAILED:
                self._announce(cause)
                is_lost = self._chief_exit_code is not None
                self._stopper.stop(Reason.CHIEF_LOST if is_lost else Reason.FAILED)
            return

    def _decide(self, end: TaskEnd) -> Decision:
        return restarts.decide(
            end,
            chief=self._chief,
            budget=self._around.budget,
            num_workers=self._requests[0].spec.num(TaskType.WORKER),
            is_stopping=self._stopper.reason is not None,
        )

    def _restart_task(self, member: Member) -> None:
        self._say_restart(member, "started again")
        self._around.budget.spend()
        member.restart(self._around.start(member.request), self._clock())
        self._record_start("task_restarted", member)

    def _restart_all(self, member: Member, *, is_smaller: bool) -> None:
        without = member.task if is_smaller else None
        left_out = f" without {without}" if is_smaller else ""
        self._say_restart(member, f"all start again from the last checkpoint{left_out}")
        self._around.budget.spend(is_smaller=is_smaller)
        self._restart = Restart(lost=member.task, without=without)
        self._stopper.stop(Reason.RESTART)

    def _say_restart(self, member: Member, what: str) -> None:
        end, budget = member.end or member.expected_end(self._now_s), self._around.budget
        how = f": {end.failure.message}" if end.failure else f" {end.how}"
        number = f" ({budget.num_spent + 1} of {budget.policy.max_restarts} restarts)"
        self._around.say(f"{member.task}{how}; {what}{number if budget.num_left else ''}.")

    def _find_cause(self) -> Cause | None:
        failures = [member.failure for member in self._members if member.failure is not None]
        return policy.root_cause(failures, [m.end for m in self._members if m.end is not None])

    @property
    def _chief_exit_code(self) -> int | None:
        ends = [m.end for m in self._members if m.task == self._chief and m.end is not None]
        return ends[0].exit_code if ends else None

    def _announce_late(self) -> None:
        if self._stop_signal is not None:  # What others say then is what a stop leads to.
            own = [m.failure for m in self._members if m.failure and m.task == self._chief]
            self._announce(policy.root_cause([f for f in own if not f.is_consequence], []))

    def _announce(self, cause: Cause | None) -> None:
        if cause is not None and self._cause is None and self._chief_exit_code != 0:
            self._cause = self._around.budget.explain(cause)
            self._around.journal.record_failure(self._cause)
            outputs = [m.output for m in self._members if m.task == cause.task]
            self._around.on_cause(self._cause, outputs[0])

    def _end_all(self) -> None:
        """Kill what still runs (after an error of our own) and clear up."""
        end_s = self._clock() + _END_DEADLINE_S
        left = [member for member in self._members if member.end is None]
        for member in left:
            member.process.kill()
        for member in left:
            wait([member.process.sentinel], max(0.0, end_s - self._clock()))
            member.drain(lambda *_: None, self._clock())
            exit_code = member.process.exit_code()
            member.is_stopped = True
            member.take_end(-signal.SIGKILL if exit_code is None else exit_code, self._clock())
