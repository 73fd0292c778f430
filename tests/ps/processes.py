"""Runs the tasks of a cluster as processes: one deadline, all logs, and nothing left behind."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import TaskType

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]


class ClusterProcesses:
    """The tasks of one cluster; the chief asks for others to be killed or started."""

    def __init__(self, spec: ClusterSpec, log_dir: Path):
        """Hold what `run` needs.

        Args:
            spec: The cluster.
            log_dir: Gets one file for each task.
        """
        self._spec = spec
        self._log_dir = log_dir
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._addresses = json.dumps(
            {str(kind): list(hosts) for kind, hosts in spec.addresses.items()}
        )

    def run(self, chief_program: str, *, timeout_s: float) -> dict:
        """Run to the chief's last line, a JSON object; return it.

        Fails the test, naming the task and with all logs, if a task that nobody killed ends
        early or the chief is not done in time.
        """
        deadline = time.monotonic() + timeout_s
        lines: queue.Queue[str] = queue.Queue()
        with self._all_ended():
            for task in self._spec.tasks():
                if task.type is not TaskType.CHIEF:
                    self._start(str(task))
            chief = self._start("chief-0", PROGRAMS / chief_program)
            threading.Thread(target=_forward, args=(chief.stdout, lines), daemon=True).start()
            while True:
                try:
                    line = lines.get(timeout=0.2)
                except queue.Empty:
                    self._check(deadline)
                    continue
                if line.startswith("{"):
                    return json.loads(line)
                self._answer(chief, line)

    def _answer(self, chief: subprocess.Popen[str], line: str) -> None:
        verb, _, task = line.strip().partition(" ")
        if verb == "kill":
            self._processes.pop(task).send_signal(signal.SIGKILL)
        elif verb == "start":
            self._start(task)
        else:
            return
        assert chief.stdin is not None
        chief.stdin.write("done\n")
        chief.stdin.flush()

    def _start(self, task: str, program: Path = PROGRAMS / "host.py") -> subprocess.Popen[str]:
        is_chief = task.startswith(str(TaskType.CHIEF))
        with open(self._log_dir / f"{task}.log", "a") as log:
            process = subprocess.Popen(
                [sys.executable, str(program), self._addresses, task],
                cwd=ROOT,
                # TensorFlow's threads are those of a machine of one core, the least there is.
                env={**os.environ, "PYTHONPATH": str(ROOT), "TF_NUM_INTEROP_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if is_chief else log,
                stderr=log,
                text=True,
            )
        self._processes[task] = process
        return process

    def _check(self, deadline: float) -> None:
        ended = {task: p.poll() for task, p in self._processes.items() if p.poll() is not None}
        if ended:
            pytest.fail(f"Tasks ended early, with exit codes {ended}.\n{self._logs()}")
        if time.monotonic() > deadline:
            pytest.fail(f"chief-0 was not done in time.\n{self._logs()}")

    def _logs(self) -> str:
        return "\n".join(
            f"--- {path.stem}\n{path.read_text()[-4000:]}"
            for path in sorted(self._log_dir.glob("*.log"))
        )

    @contextlib.contextmanager
    def _all_ended(self) -> Iterator[None]:
        try:
            yield
        finally:
            for process in self._processes.values():
                process.kill()
            for process in self._processes.values():
                process.wait(timeout=10)


def _forward(stream, lines: "queue.Queue[str]") -> None:
    for line in stream:
        lines.put(line)
