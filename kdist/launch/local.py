"""Runs all tasks of a run on this machine: one process each, from start to end."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from kdist.cluster.task import Task
from kdist.cluster.traits import traits_of
from kdist.errors import ConfigError
from kdist.launch import forkserver
from kdist.launch.attempts import FindPorts, run_attempts
from kdist.launch.console_pump import NoiseFilter, TaskOutput, TerminalEcho
from kdist.launch.failure_text import render_failure
from kdist.launch.journal import Journal, known_facts
from kdist.launch.policy import Cause
from kdist.launch.ports import find_free_ports
from kdist.launch.request import TaskRequest
from kdist.launch.restarts import RestartBudget, RestartPolicy
from kdist.launch.signals import SignalInbox
from kdist.launch.surroundings import Surroundings
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
    find_ports: FindPorts = find_free_ports,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> LocalRun:
    """Start one process for each request, and return when none is left, in any case.

    After a loss tasks are started again, one or all of them, as `restarts` has it. The chief's
    output goes to `stdout`, everybody's to the run folder's logs/; a failure is one message on
    `stderr`. SIGINT and SIGTERM are passed on; a second one kills. When this process dies, however
    it dies, the tasks die with it.

    Args:
        requests: The tasks, all of one cluster; the chief among them.
        timing: How long stopping tasks get; as configured (`cluster.stop_grace_s`), unless given.
        restarts: What the loss of a task leads to; as the strategy and `cluster.max_restarts`
            have it, unless given.
        verbose: Pass on TensorFlow's start-up messages; as configured, unless given.
        debug: Show tracebacks; as configured, unless given.
        task_main: The tasks' main function (`(request, link) -> exit code`), as `module:function`.
        environment: The tasks' environment, if it is not what the fork server has.
        preload: What the fork server imports, if it does not run yet.
        signals: Where SIGINT and SIGTERM come in; outside the main thread nothing comes but what
            is sent there.
        find_ports: Returns ports for an attempt that follows a loss.
        stdout: Where the chief's output goes; `sys.stdout`, unless given.
        stderr: Where messages go; `sys.stderr`, unless given.

    Raises:
        TaskTimeoutError: If tasks could not be started in time.
        EnvironmentFault: If they could not be started at all.
    """
    config, spec = requests[0].config, requests[0].spec
    is_verbose = bool(config.get("verbose") if verbose is None else verbose)
    is_debug = bool(config.get("debug") if debug is None else debug)
    echo, messages = TerminalEcho(stdout), TerminalEcho(stderr or sys.stderr)
    journal = Journal()
    outputs: dict[Task, TaskOutput] = {}

    def start(request: TaskRequest) -> TaskProcess:
        return TaskProcess.start(
            request, task_main=task_main, environment=environment, preload=preload
        )

    def output_of(task: Task) -> TaskOutput:
        if task not in outputs:
            is_echoed = task == spec.chief
            shown = NoiseFilter(echo.write, is_dropping=not is_verbose) if is_echoed else None
            outputs[task] = TaskOutput(task, shown)
        return outputs[task]

    def say(line: str) -> None:
        echo.tidy()
        messages.write(line + "\n")

    def report(cause: Cause, output: TaskOutput) -> None:
        tail = output.tail(_TAIL_LINES)
        log_path = output.log_path
        say(render_failure(cause, tail=tail, log_path=log_path, debug=is_debug).rstrip("\n"))

    budget = RestartBudget(restarts or _restarts_of(config))
    try:
        with (signals or SignalInbox()).opened() as inbox:
            ended, requests = run_attempts(
                requests,
                Surroundings(
                    start=start,
                    output_of=output_of,
                    journal=journal,
                    signals=inbox,
                    timing=timing or _timing_of(config),
                    budget=budget,
                    on_cause=report,
                    say=say,
                ),
                find_ports,
            )
    finally:
        for output in outputs.values():
            output.close()
    unsaved = journal.settle_result(
        cause=ended.cause,
        was_stopped=ended.stop_signal is not None,
        known=known_facts(config, requests[0].spec),
    )
    if is_debug and journal.folder is None and ended.cause is not None:
        for output in outputs.values():
            say("\n".join([f"--- {output.task}", *output.tail(200)]))
    is_undisturbed = ended.cause is None and ended.stop_signal is None
    warnings = ended.warnings if is_undisturbed else ()
    warnings += tuple(filter(None, [unsaved, journal.error]))
    for warning in warnings:
        say(f"Warning: {warning}")
    return LocalRun(
        exit_code=ended.exit_code,
        cause=ended.cause,
        run_dir=journal.folder.path if journal.folder else None,
        warnings=warnings,
    )


def _timing_of(config: Mapping[str, Any]) -> Timing:
    cluster = config.get("cluster") or {}
    names = ("stop_grace_s", "heartbeat_timeout_s")
    return Timing(**{name: float(cluster[name]) for name in names if name in cluster})


def _restarts_of(config: Mapping[str, Any]) -> RestartPolicy:
    """Return what a loss leads to; only training is worth another attempt."""
    strategy, cluster = config.get("strategy") or {}, config.get("cluster") or {}
    if config.get("command", "train") != "train":
        return RestartPolicy()
    try:
        traits = traits_of(
            str(strategy.get("name")), strategy.get("replication"), strategy.get("update")
        )
    except ConfigError:
        return RestartPolicy()
    return RestartPolicy(
        alone=traits.restarts_alone,
        max_restarts=cluster.get("max_restarts", _MAX_RESTARTS),
        min_workers=strategy.get("min_workers"),
    )
