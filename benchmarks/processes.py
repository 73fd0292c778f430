"""Starts the processes of one measurement, and sees to it that all of them end."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
_POLL_S = 0.1


@dataclass(frozen=True)
class Finished:
    """How a program ended.

    Attributes:
        exit_code: `None` if it had to be killed after the deadline.
        output: Standard output and standard error together.
        wall_s: From the start to the end.
    """

    exit_code: int | None
    output: str
    wall_s: float

    @property
    def last_line(self) -> str:
        """Return the last line that says something, for reports of failures."""
        if self.exit_code is None:
            return f"not done after {self.wall_s:.0f} s"
        lines = [line for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or [f"exit code {self.exit_code}"])[-1].strip()[:200]


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of a measured process: no accelerator, no noise, no TF_CONFIG."""
    kept = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "KERAS_BACKEND")}
    return kept | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", **extra}


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    watch: Callable[[int], None] | None = None,
) -> Finished:
    """Run one program with its children to its end, or kill them all after `timeout_s`.

    Args:
        argv: The program.
        timeout_s: After so long it is killed.
        env: Its environment; by default `environment()`.
        watch: Called with its process id ten times a second.
    """
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as output, _process(argv, env or environment(), output) as child:
        exit_code = None
        try:
            if watch is None:
                exit_code = child.wait(timeout_s)
            while watch is not None and time.monotonic() < began_s + timeout_s:
                watch(child.pid)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    exit_code = child.wait(_POLL_S)
                    break
        except subprocess.TimeoutExpired:
            pass
        wall_s = time.monotonic() - began_s
        _kill_group(child)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Finished(exit_code, text, wall_s)


def run_cluster(
    argv: Sequence[str], cluster: Mapping[str, int], *, reporter: str, timeout_s: float
) -> Finished:
    """Run one program in a process for each task of a cluster on this machine.

    Args:
        argv: The program; each process gets its own TF_CONFIG.
        cluster: Tasks by type, such as `{"chief": 1, "worker": 2, "ps": 2}`.
        reporter: The task whose end ends all and whose output is returned, such as `chief-0`.
        timeout_s: After so long everything is killed.
    """
    ports = iter(free_ports(sum(cluster.values())))
    spec = {
        kind: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for kind, count in cluster.items()
    }
    envs = {
        f"{kind}-{index}": environment(
            TF_CONFIG=json.dumps({"cluster": spec, "task": {"type": kind, "index": index}}),
            GRPC_FAIL_FAST="use_caller",
        )
        for kind, count in cluster.items()
        for index in range(count)
    }
    with contextlib.ExitStack() as stack:
        for name, env in envs.items():
            if name != reporter:
                stack.enter_context(_process(argv, env, subprocess.DEVNULL))
        return run(argv, timeout_s=timeout_s, env=envs[reporter])


def free_ports(count: int) -> tuple[int, ...]:
    """Return ports that differ and that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return tuple(one.getsockname()[1] for one in sockets)


def end_with_this_process() -> None:
    """Let a SIGTERM to this process end what it has started, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def python(*arguments: str) -> tuple[str, ...]:
    """Return the command that runs this Python with `arguments`."""
    return (sys.executable, *arguments)


@contextlib.contextmanager
def _process(argv: Sequence[str], env: Mapping[str, str], output) -> Iterator[subprocess.Popen]:
    """Own a process and its group: on leaving, none of them lives."""
    child = subprocess.Popen(
        argv,
        env=dict(env),
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        _kill_group(child)


def _kill_group(child: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(30)
