"""Runs kdist as its users do: as processes, whose output and leftovers can be looked at."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

MARK = "KDIST_TEST_MARK"
_SHOWN_LINES = 60
_UNWANTED = ("TF_CONFIG", "KERAS_BACKEND", "TF_USE_LEGACY_KERAS", "TF_CPP_MIN_LOG_LEVEL")


@dataclass
class Command:
    """A started command. All that it starts carries its mark, so that nothing can hide."""

    argv: list[str]
    cwd: Path
    process: subprocess.Popen
    mark: str
    folder: Path  # Where its output goes.
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    @property
    def stdout(self):
        return (self.folder / f"{self.mark}.out").read_text(errors="replace")

    @property
    def stderr(self):
        return (self.folder / f"{self.mark}.err").read_text(errors="replace")

    @property
    def code(self):
        return self.process.returncode

    @property
    def seconds(self):
        assert self.ended_s is not None
        return self.ended_s - self.started_s

    def wait(self, deadline_s):
        """Wait for its end; return itself."""
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} did not end within {deadline_s} s") from None
        self.ended_s = time.monotonic()
        return self

    def tasks(self, run_dir):
        """Return the latest process of each task, as the events tell them."""
        started = ("task_started", "task_restarted")
        return {e["task"]: e["pid"] for e in Run(run_dir).events if e["event"] in started}

    def evidence(self):
        text = f"$ {self} (in {self.cwd}) -> {self.code}\n"
        return text + f"--- stdout\n{_end(self.stdout)}\n--- stderr\n{_end(self.stderr)}\n"

    def __str__(self):
        return f"kdist {' '.join(self.argv)}"


@dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path

    @property
    def result(self):
        def refuse(name):
            raise AssertionError(f"result.json is no valid JSON: it holds {name}")

        return json.loads((self.path / "result.json").read_text(), parse_constant=refuse)

    @property
    def events(self):
        file = self.path / "events.jsonl"
        whole = file.read_text().split("\n")[:-1] if file.exists() else []  # One may be half there.
        return [json.loads(line) for line in whole]

    @property
    def rows(self):
        with (self.path / "metrics.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def num_events(self, name):
        return sum(event["event"] == name for event in self.events)

    def log(self, task):
        return (self.path / "logs" / f"{task}.log").read_text(errors="replace")

    def evidence(self):
        files = [self.path / "result.json", self.path / "events.jsonl"]
        files += sorted((self.path / "logs").glob("*.log"))
        return "".join(
            f"--- {f}\n{_end(f.read_text(errors='replace'))}\n" for f in files if f.exists()
        )


class Workbench:
    """Starts commands, and ends whatever is left of them."""

    def __init__(self, folder):
        self.folder = folder
        self.commands = []
        self._temporary = []

    def temporary_folder(self):
        """Return a folder for temporary files whose path leaves room for the names of sockets."""
        self._temporary.append(tempfile.TemporaryDirectory(prefix="kd-"))
        return Path(self._temporary[-1].name)

    def start(self, *argv, cwd=None, program=("-m", "kdist"), **environ):
        mark = uuid.uuid4().hex
        kept = {k: v for k, v in os.environ.items() if k not in _UNWANTED}
        environ = {**kept, "CUDA_VISIBLE_DEVICES": "-1", **environ, MARK: mark}
        self.folder.mkdir(parents=True, exist_ok=True)
        cwd = Path(cwd or self.folder)
        with (
            (self.folder / f"{mark}.out").open("wb") as out,
            (self.folder / f"{mark}.err").open("wb") as err,
        ):
            process = subprocess.Popen(
                [sys.executable, *program, *map(str, argv)],
                cwd=cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        command = Command([str(a) for a in argv], cwd, process, mark, self.folder)
        self.commands.append(command)
        return command

    def run(self, *argv, deadline_s=90, **options):
        return self.start(*argv, **options).wait(deadline_s)

    def start_cluster(self, cluster, *argv, order=None, tasks=None, **options):
        """Start one command for each task of a cluster; return them by task name."""
        commands = {}
        names = order or [f"{kind}-{i}" for kind, all_ in cluster.items() for i in range(len(all_))]
        for name in names if tasks is None else tasks:
            kind, _, index = name.partition("-")
            task = {"type": kind, "index": int(index)}
            commands[name] = self.start(
                *argv, TF_CONFIG=json.dumps({"cluster": cluster, "task": task}), **options
            )
        return commands

    def end_all(self):
        for command in self.commands:
            for pid in marked(command.mark):
                _kill(pid)
            command.process.wait(20)
        for folder in self._temporary:
            folder.cleanup()

    def evidence(self):
        return "".join(command.evidence() for command in self.commands)


def leftovers(*commands, within_s=3.0):
    """Return the processes that are left of commands after a short while, with their names."""
    end_s = time.monotonic() + within_s
    while True:
        left = {pid: _name(pid) for command in commands for pid in marked(command.mark)}
        if not left or time.monotonic() > end_s:
            return left
        threading.Event().wait(0.05)


def marked(mark):
    """Return the ids of all live processes that carry a mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if wanted in (folder / "environ").read_bytes() and is_alive(int(folder.name)):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(is_reached, deadline_s, what):
    """Wait for a fact that shows only in files or processes."""
    end_s = time.monotonic() + deadline_s
    while not is_reached():
        assert time.monotonic() < end_s, f"this did not come true in {deadline_s} s: {what}"
        threading.Event().wait(0.02)


def wait_for_epoch(run_dir, deadline_s=60, epochs=1):
    """Wait until a run has ended so many epochs."""
    wait_until(
        lambda: Run(run_dir).num_events("epoch_ended") >= epochs, deadline_s, f"{epochs} epochs"
    )


def cluster_of(**counts):
    """Return the cluster part of a TF_CONFIG on free ports of this machine."""
    holders, cluster = [], {}
    for kind, num in counts.items():
        for _ in range(num):
            holder = socket.socket()
            holder.bind(("127.0.0.1", 0))
            holders.append(holder)
            cluster.setdefault(kind, []).append(f"127.0.0.1:{holder.getsockname()[1]}")
    for holder in holders:
        holder.close()
    return cluster


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _name(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except OSError:
        return "?"


def _end(text):
    return "\n".join(text.splitlines()[-_SHOWN_LINES:])
