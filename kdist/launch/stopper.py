"""Makes tasks end: by themselves if they can, by SIGTERM, by SIGKILL."""

import signal
from collections.abc import Callable, Iterable

from kdist.launch.member import Member
from kdist.launch.timing import Reason, StopPlan, Timing, plan_stop

_LONGEST_WAIT_S = 60.0


class Stopper:
    """Carries out the plan to stop, once there is one."""

    def __init__(self, timing: Timing, clock: Callable[[], float]) -> None:
        """Nothing is to be stopped yet."""
        self.timing = timing
        self.plan: StopPlan | None = None
        self._clock = clock

    @property
    def reason(self) -> Reason | None:
        """Why all tasks must end; `None` while the run goes on."""
        return None if self.plan is None else self.plan.reason

    @property
    def is_out_of_patience(self) -> bool:
        """Whether tasks that still run have to be told by now."""
        return self.plan is not None and self._clock() >= self.plan.terminate_at_s

    def stop(self, reason: Reason) -> None:
        """End all tasks for this reason; the latest reason counts, the earliest deadlines too."""
        self.plan = plan_stop(reason, self._clock(), self.timing, self.plan)

    def expect_exit(self, member: Member) -> None:
        """Give a task that has said its last word a while to leave."""
        member.leave_by_s = self._clock() + self.timing.leave_s

    def next_delay_s(self, running: Iterable[Member], *more_s: float) -> float:
        """Return the seconds until something may have to be done; `more_s` are further times."""
        times = [member.leave_by_s for member in running if member.leave_by_s is not None]
        times += [member.heard_at_s + self.timing.heartbeat_timeout_s for member in running]
        times += more_s
        if self.plan is not None:
            times += [self.plan.terminate_at_s, self.plan.kill_at_s]
        now_s = self._clock()
        return min((at_s - now_s for at_s in times if at_s > now_s), default=_LONGEST_WAIT_S)

    def enforce(self, members: Iterable[Member]) -> None:
        """Signal and kill whoever is overdue."""
        now_s = self._clock()
        for member in members:
            if member.end is not None:
                continue
            is_due = self.plan is not None and now_s >= self.plan.kill_at_s
            if self.is_out_of_patience and not is_due and not member.is_terminated:
                member.is_stopped = member.is_terminated = member.is_signalled = True
                member.process.send_signal(signal.SIGTERM)
            is_late = member.leave_by_s is not None and now_s >= member.leave_by_s
            if not member.is_killed and (is_late or is_due):
                member.is_stopped = member.is_killed = True
                member.process.kill()
            silence_s = now_s - member.heard_at_s
            is_silent = silence_s >= self.timing.heartbeat_timeout_s
            if is_silent and member.silence_s is None and member.is_frozen:
                member.silence_s = silence_s
                member.process.kill()
