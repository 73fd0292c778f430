"""What all attempts of a run share."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kdist.cluster.task import Task
from kdist.launch.console_pump import TaskOutput
from kdist.launch.journal import Journal
from kdist.launch.policy import Cause
from kdist.launch.request import TaskRequest
from kdist.launch.restarts import RestartBudget
from kdist.launch.signals import SignalInbox
from kdist.launch.task_process import TaskProcess
from kdist.launch.timing import Timing


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a supervisor needs beside its tasks.

    Attributes:
        start: Starts one task.
        output_of: Returns where the output of a task goes.
        journal: Takes events.
        signals: Open.
        timing: How long stopping tasks get.
        budget: Who is started again after a loss, and how often still.
        on_cause: Told once why the run failed, as soon as that is known.
        say: Takes a line for the user.
        clock: Seconds.
    """

    start: Callable[[TaskRequest], TaskProcess]
    output_of: Callable[[Task], TaskOutput]
    journal: Journal
    signals: SignalInbox
    timing: Timing
    budget: RestartBudget
    on_cause: Callable[[Cause, TaskOutput], None]
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
