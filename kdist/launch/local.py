"""Runs all tasks of a run on this machine: one process each, from start to end."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import traits_of
from kdist.errors import ConfigError
from kdist.launch import forkserver
from kdist.launch.console_pump import NoiseFilter, TaskOutput, TerminalEcho
from kdist.launch.failure_text import render_failure
from kdist.launch.journal import Journal, known_facts
from kdist.launch.policy import Cause, RestartPolicy
from kdist.launch.request import TaskRequest
from kdist.launch.signals import SignalInbox
from kdist.launch.supervisor import Supervisor
from kdist.launch.task_process import TaskProcess
from kdist.launch.timing import Timing

TASK_MAIN = "kdist.assembly:task_main"
_MAX_RESTARTS = 3
_TAIL_LINES = 15


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """How a run on this machine ended.

    Attributes:
        exit_code: As in docs/architecture.md.
        cause: Why it failed; already printed.
        run_dir: The run folder, if the run came so far.
        warnings: What went wrong without failing the run; already printed.
    """

    exit_code: int
    cause: Cause | None
    run_dir: Path | None
    warnings: tuple[str, ...]


def run_local(requests: Sequence[TaskRequest], **options: Any) -> int:
    """Run tasks and return the exit code; see `run_tasks`."""
    return run_tasks(requests, **options).exit_code


def run_tasks(
    requests: Sequence[TaskRequest],
    *,
    timing: Timing | None = None,
    restarts: RestartPolicy | None = None,
    verbose: bool | None = None,
    debug: bool | None = None,
    task_main: str = TASK_MAIN,
    environment: Mapping[str, str] | None = None,
    preload: Sequence[str] = forkserver.PRELOAD,
    signals: SignalInbox | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> LocalRun:
    """Start one process for each request, and return when none is left, in any case.

    The chief's output goes to `stdout`, everybody's to the run folder's logs/; a failure is one
    message on `stderr`. SIGINT and SIGTERM are passed on; a second one kills. When this process
    dies, however it dies, the tasks die with it.

    Args:
        requests: The tasks, all of one cluster; the chief among them.
        timing: How long stopping tasks get; as configured (`cluster.stop_grace_s`), unless given.
        restarts: Who is started again after a loss: workers under a coordinator, unless given.
        verbose: Pass on TensorFlow's start-up messages; as configured, unless given.
        debug: Show tracebacks; as configured, unless given.
        task_main: The tasks' main function (`(request, link) -> exit code`), as `module:function`.
        environment: The tasks' environment, if it is not what the fork server has.
        preload: What the fork server imports, if it does not run yet.
        signals: Where SIGINT and SIGTERM come in; outside the main thread nothing comes but what
            is sent there.
        stdout: Where the chief's output goes; `sys.stdout`, unless given.
        stderr: Where messages go; `sys.stderr`, unless given.

    Raises:
        TaskTimeoutError: If tasks could not be started in time.
        EnvironmentFault: If they could not be started at all.
    """
    config, spec = requests[0].config, requests[0].spec
    is_verbose = bool(config.get("verbose") if verbose is None else verbose)
    is_debug = bool(config.get("debug") if debug is None else debug)
    errors = stderr or sys.stderr
    echo = TerminalEcho(stdout)
    journal = Journal()
    outputs: list[TaskOutput] = []

    def start(request: TaskRequest) -> TaskProcess:
        return TaskProcess.start(
            request, task_main=task_main, environment=environment, preload=preload
        )

    def make_output(task: Task) -> TaskOutput:
        is_echoed = task == spec.chief
        shown = NoiseFilter(echo.write, is_dropping=not is_verbose) if is_echoed else None
        outputs.append(TaskOutput(task, shown))
        return outputs[-1]

    def say(line: str) -> None:
        echo.tidy()
        print(line, file=errors, flush=True)

    def report(cause: Cause, output: TaskOutput) -> None:
        tail = output.tail(_TAIL_LINES)
        log_path = output.log_path
        say(render_failure(cause, tail=tail, log_path=log_path, debug=is_debug).rstrip("\n"))

    ended = Supervisor(
        requests,
        chief=spec.chief,
        start=start,
        make_output=make_output,
        journal=journal,
        timing=timing or _timing_of(config),
        restarts=restarts or _restarts_of(config),
        on_cause=report,
        say=say,
        signals=signals,
    ).run()
    journal.settle_result(
        cause=ended.cause,
        was_stopped=ended.stop_signal is not None,
        known={**known_facts(config, spec), "workers_lost": ended.num_lost},
        num_restarts=ended.num_restarts,
    )
    if is_debug and journal.folder is None and ended.cause is not None:
        for output in outputs:
            say("\n".join([f"--- {output.task}", *output.tail(200)]))
    is_undisturbed = ended.cause is None and ended.stop_signal is None
    warnings = (ended.warnings if is_undisturbed else ()) + tuple(filter(None, [journal.error]))
    for warning in warnings:
        say(f"Warning: {warning}")
    return LocalRun(
        exit_code=ended.exit_code,
        cause=ended.cause,
        run_dir=journal.folder.path if journal.folder else None,
        warnings=warnings,
    )


def _timing_of(config: Mapping[str, Any]) -> Timing:
    configured = (config.get("cluster") or {}).get("stop_grace_s")
    return Timing() if configured is None else Timing(stop_grace_s=float(configured))


def _restarts_of(config: Mapping[str, Any]) -> RestartPolicy:
    """Return who may be lost without ending the run: what a coordinator can do without."""
    strategy = config.get("strategy") or {}
    try:
        traits = traits_of(
            str(strategy.get("name")), strategy.get("replication"), strategy.get("update")
        )
    except ConfigError:
        return RestartPolicy()
    if not traits.needs_coordinator:
        return RestartPolicy()
    task_types = traits.hosts - {TaskType.PS}
    max_restarts = (config.get("cluster") or {}).get("max_restarts", _MAX_RESTARTS)
    return RestartPolicy(task_types=task_types, max_restarts=max_restarts)
