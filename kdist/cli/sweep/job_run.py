"""One job of a sweep that is ready to start: its processes, and what comes out of them."""

import dataclasses
import io
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO, cast

from kdist.cli.arguments import to_train
from kdist.cli.reporting import say
from kdist.cli.run import PreparedRun
from kdist.cli.sweep.jobs import Outcome, SweepJob, failed, outcome_of_run, status_of
from kdist.errors import KdistError
from kdist.launch.local import LocalRun, run_tasks
from kdist.launch.plan_text import render_plan
from kdist.launch.request import Console
from kdist.launch.signals import SignalInbox
from kdist.records.result import COMPLETED


@dataclass(frozen=True, kw_only=True)
class JobRun:
    """What carries out one job.

    Attributes:
        job: The job.
        prepared: Its run.
        metric: The metric to report; what the run goes by, unless given.
        is_side_by_side: Whether others run at the same time: then what it trains is told in
            logs/ only, everything else at its end, and each line of an error names the job.
        environment: The tasks' environment, if it is not what the fork server has.
    """

    job: SweepJob
    prepared: PreparedRun
    metric: str | None
    is_side_by_side: bool
    environment: Mapping[str, str] | None = None

    def ports(self) -> list[int]:
        """Return the ports that its tasks serve on."""
        spec = self.prepared.plan.spec
        return [int(spec.address(task).rpartition(":")[2]) for task in spec.tasks()]

    def carry_out(self, signals: SignalInbox) -> Outcome:
        """Run the job to its end and return what came of it. Called in the job's thread.

        Raises:
            KdistError: If its tasks could not be started.
        """
        started_s = time.monotonic()
        printed = io.StringIO() if self.is_side_by_side else None
        if self.prepared.config.command == "plan":
            arguments = to_train(self.job.composition.arguments)
            say(render_plan(self.prepared.plan, arguments), printed)
            if not self.prepared.config.plan.model:
                self._show(printed)
                return Outcome(status=COMPLETED)
        ended = self._run(signals, printed)
        if not self.job.trains:
            self._show(printed)
        return self._outcome(ended, time.monotonic() - started_s)

    def _run(self, signals: SignalInbox, printed: TextIO | None) -> LocalRun:
        requests = self.prepared.requests
        if self.prepared.config.command == "plan":
            requests = [asked for asked in requests if asked.task == self.prepared.plan.spec.chief]
        if not self.is_side_by_side:
            return run_tasks(requests, signals=signals, environment=self.environment)
        return run_tasks(
            [dataclasses.replace(request, console=Console()) for request in requests],
            signals=signals,
            environment=self.environment,
            stdout=cast(TextIO, _Nowhere()) if self.job.trains else printed,
            stderr=cast(TextIO, _Named(f"job {self.job.number} | ")),
        )

    def _outcome(self, ended: LocalRun, seconds: float) -> Outcome:
        status = status_of(ended.exit_code)
        error = ended.cause.message if ended.cause is not None else None
        if not self.job.trains or ended.run_dir is None:
            return Outcome(status=status, seconds=seconds, error=error, is_told=True)
        try:
            found = outcome_of_run(ended.run_dir, metric=self.metric)
        except KdistError as problem:
            return dataclasses.replace(failed(error or problem, seconds), is_told=bool(error))
        return dataclasses.replace(
            found, status=status, seconds=seconds, error=error or found.error, is_told=True
        )

    def _show(self, printed: io.StringIO | None) -> None:
        if printed is not None:
            say(printed.getvalue())


class _Nowhere(io.TextIOBase):
    """A stream that keeps nothing."""

    def write(self, text: str) -> int:
        """Take the text."""
        return len(text)


class _Named(io.TextIOBase):
    """Passes whole lines on to stderr, with a name before each."""

    def __init__(self, name: str) -> None:
        """Begin each line with `name`."""
        self._name = name
        self._rest = ""

    def write(self, text: str) -> int:
        """Pass on the lines that are complete."""
        *lines, self._rest = (self._rest + text).split("\n")
        say("".join(f"{self._name}{line}\n" for line in lines), sys.stderr)
        return len(text)
