import io
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from kdist.launch import forkserver
from kdist.launch.local import run_tasks
from kdist.launch.restarts import RestartPolicy
from kdist.launch.timing import Timing

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from kit import make_requests  # noqa: E402

QUICK = Timing(stop_grace_s=20, failure_grace_s=2, terminate_grace_s=1, settle_s=0.5, leave_s=1.5)


@dataclass
class Launched:
    run: object
    stdout: str
    stderr: str
    run_dir: Path

    def log(self, task):
        return (self.run_dir / "logs" / f"{task}.log").read_text()

    def events(self):
        lines = (self.run_dir / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def result(self):
        return json.loads((self.run_dir / "result.json").read_text())


@pytest.fixture(scope="session", autouse=True)
def _no_forkserver_left():
    yield
    forkserver.end()


@pytest.fixture
def launch(tmp_path):
    def run(steps, *, timing=QUICK, restarts=None, counts=None, config=None, **options):
        stdout, stderr = io.StringIO(), io.StringIO()
        run_dir = tmp_path / "run"
        requests = make_requests(steps, run_dir, **(counts or {}), **(config or {}))
        ran = run_tasks(
            requests,
            timing=timing,
            restarts=restarts or RestartPolicy(),
            task_main=options.pop("task_main", "fake_tasks:scripted"),
            preload=options.pop("preload", ()),
            stdout=stdout,
            stderr=stderr,
            **options,
        )
        return Launched(ran, stdout.getvalue(), stderr.getvalue(), run_dir)

    return run


@pytest.fixture
def launcher_process(tmp_path):
    started = []

    def start(steps, *, timing=None, counts=None, restarts=None, **popen):
        options = {
            "requests": {"steps": steps, "run_dir": str(tmp_path / "run"), **(counts or {})},
            "timing": timing or {},
            "restarts": restarts or {},
        }
        started.append(
            subprocess.Popen(
                [sys.executable, str(HERE / "launch_program.py"), json.dumps(options)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.getcwd()},
                **popen,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=20)


def wait_until(is_reached, deadline_s=20.0):
    """Wait for a fact that shows nowhere but in the file system or the process table."""
    end_s = time.monotonic() + deadline_s
    while not is_reached():
        assert time.monotonic() < end_s, "this did not come true in time"
        threading.Event().wait(0.01)


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []


def is_alive(pid):
    """Whether a process runs; one that is dead and only not yet collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
