"""What a task process does, from its request to its exit code."""

import contextlib
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

import tensorflow as tf

from kdist import config as kdist_config
from kdist.assembly import commands
from kdist.assembly.chief_link import ChiefLink
from kdist.assembly.cluster_link import ClusterLink, NoCluster, end_process
from kdist.assembly.failures import as_kdist_error, with_lost_peer
from kdist.assembly.peer_link import PeerLink
from kdist.assembly.program import run_program
from kdist.assembly.run_start import wish_of
from kdist.assembly.signals import EXIT_CODES, StoppedEarly, StopSignals
from kdist.assembly.telling import tell_end, tell_own_terminal
from kdist.assembly.training_run import TrainingRun
from kdist.cluster.task import Task
from kdist.cluster.traits import StrategyTraits, traits_of
from kdist.config.dotted import flattened
from kdist.config.rules import CLUSTER_COMMANDS
from kdist.config.schema import Config
from kdist.distribute import runtime
from kdist.distribute.strategies import start_server
from kdist.errors import (
    KdistError,
    PeerLostError,
    TaskTimeoutError,
    exit_code_of,
)
from kdist.launch.child import exit_call
from kdist.launch.request import LauncherLink, TaskRequest
from kdist.records.resumption import finished_text, is_finished

_DEBUG_HINT = "\n(debug=true shows the traceback)"

# What only concerns one task's messages, and the secret that signs them.
_NOT_COMPARED = ("verbose", "debug", "cluster.key")


def task_main(request: TaskRequest, link: LauncherLink) -> int:
    """Be one task of a run; return its exit code. Called once, in the task's own process.

    Args:
        request: What to do, and who this task is.
        link: The way to the launcher; a null link where a foreign scheduler started this task.
    """
    try:
        exit_code = _be_task(request, link)
        link.send("finished", exit_code=exit_code)
        return exit_code
    except StoppedEarly as stop:
        if not request.is_local:
            sys.stderr.write(f"{stop}\n")
        return stop.exit_code
    except SystemExit as error:  # Only what a user wrote calls it.
        return _report(exit_call(error), request, link)
    except Exception as error:
        return _report(error, request, link)


def _be_task(request: TaskRequest, link: LauncherLink) -> int:
    config = kdist_config.load(request.config)
    traits = traits_of(
        config.strategy.name or "", config.strategy.replication, config.strategy.update
    )
    hosts = request.task.type in traits.hosts
    signals = StopSignals(
        is_host=hosts, is_local=request.is_local, grace_s=config.cluster.stop_grace_s
    )
    signals.install()
    if not config.verbose:
        tf.get_logger().setLevel(logging.CRITICAL)  # What is wrong reaches the user as an error.
        runtime.hide_errors_of_deletion()
    runtime.configure(
        num_devices=max(1, request.num_devices),
        accelerators=request.accelerators,
        seed=config.seed or 0,
        deterministic=config.deterministic,
    )
    if config.command not in CLUSTER_COMMANDS:
        return commands.run(config, request)
    cluster = _cluster_link(config, traits, request, link)
    if not join(cluster, request, config):
        return 0
    link = _ReadyLink(link, cluster)
    if isinstance(cluster, PeerLink) and hosts:
        signals.begin(cluster.ask_to_stop)
        serves_calls = traits.needs_coordinator or config.command == "program"
        return _host(request, cluster, link, serves_calls=serves_calls)
    if not cluster.is_chief:
        tell_own_terminal(request, f"takes part in the run of {request.spec.chief}")
    exit_code, has_ended = 1, False
    try:
        if config.command == "program":
            exit_code, has_ended = run_program(request, config, link), True
        else:
            run = TrainingRun(request, config, traits, cluster, link, signals)
            exit_code, has_ended = run.run(), True
    except StoppedEarly as stop:
        exit_code = stop.exit_code
        raise
    except Exception as error:
        cause = with_lost_peer(error, request.task, cluster)
        exit_code = exit_code_of(as_kdist_error(cause))
        if cause is error:
            raise
        raise cause from error
    finally:
        cluster.leave(exit_code, has_ended=has_ended)
    if not cluster.is_chief:
        tell_end(request, exit_code)
    return exit_code


def join(cluster: ClusterLink, request: TaskRequest, config: Config) -> bool:
    """Wait until every task is there; return whether there is still something to do.

    A scheduler starts a lost worker again, also when the others have finished without it.

    Raises:
        KdistError: If tasks are missing, and the run is not finished as far as this task can see.
    """
    try:
        cluster.join()
    except TaskTimeoutError:
        with contextlib.suppress(KdistError):
            if not cluster.is_chief and is_finished(wish_of(request, config)):
                sys.stdout.write(finished_text(Path(request.run_dir)) + "\n")
                return False
        raise
    return True


class _ReadyLink:
    """Tells the other tasks, too, when this one is ready."""

    def __init__(self, link: LauncherLink, cluster: ClusterLink):
        self._link = link
        self._cluster = cluster

    def send(self, event: str, **fields: Any) -> None:
        """Tell the launcher; see `LauncherLink`."""
        if event == "task_ready":
            self._cluster.ready()
        self._link.send(event, **fields)


def _host(
    request: TaskRequest, cluster: PeerLink, link: LauncherLink, *, serves_calls: bool
) -> int:
    """Lend this process to the chief as a TensorFlow server, until the run ends.

    A chief that failed has said so itself; this task did its part, unless it is to start again or
    the run was stopped.
    """
    server = start_server(request.spec, request.task, serves_calls=serves_calls)
    link.send("task_ready", address=server.target)
    address = request.spec.address(request.task)
    tell_own_terminal(request, f"serving at {address}; waiting for {request.spec.chief} to end")
    exit_code = cluster.wait_done()
    tell_end(request, exit_code)
    return exit_code if exit_code in (PeerLostError.exit_code, *EXIT_CODES.values()) else 0


def _cluster_link(
    config: Config, traits: StrategyTraits, request: TaskRequest, link: LauncherLink
) -> ClusterLink:
    if not request.spec.is_distributed:
        return NoCluster()

    def give_up(error: KdistError) -> None:
        end_process(_report(error, request, link))

    flat = compared(request, traits)
    if request.task == request.spec.chief:

        def on_event(event: str, task: Task) -> None:
            link.send(event, task=str(task))

        return ChiefLink(
            config,
            flat,
            traits,
            request.spec,
            on_event,
            give_up,
            ends_frozen=request.is_local,
        )
    return PeerLink(config, flat, request.spec, request.task, give_up)


def compared(request: TaskRequest, traits: StrategyTraits) -> dict[str, Any]:
    """Return what all tasks must have alike: settings, and the devices of each that trains."""
    flat = flattened(request.config)
    for key in _NOT_COMPARED:
        flat.pop(key, None)
    if len(traits.trains_on) > 1:
        where = "accelerators" if request.accelerators else "the CPU"
        flat["replicas of a worker"] = f"{max(1, request.num_devices)} on {where}"
    return flat


def _report(error: Exception, request: TaskRequest, link: LauncherLink) -> int:
    """Tell the launcher, or whoever reads stderr, what went wrong; return the exit code."""
    meant = as_kdist_error(error)
    text = "".join(traceback.format_exception(error))
    link.send(
        "failed",
        type=type(error).__name__,
        message=str(meant),
        task=str(request.task),
        is_consequence=getattr(meant, "is_consequence", isinstance(meant, PeerLostError)),
        traceback=text,
        exit_code=exit_code_of(meant),
    )
    is_debug = bool(request.config.get("debug"))
    if not request.is_local:  # A launcher tells the user, and keeps the traceback in the log.
        hint = "" if is_debug or meant.tells_all else _DEBUG_HINT
        with contextlib.suppress(OSError):  # Whoever read it may be gone.
            sys.stderr.write(f"{text if is_debug else ''}Error ({request.task}): {meant}{hint}\n")
            sys.stderr.flush()
    return exit_code_of(meant)
