"""Watches one run of kdist from outside: its speed in the middle, and what each task computed."""

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import processes

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_NO_END = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The timed part of a run, which begins and ends between two stretches of steps.

    Attributes:
        num_steps: Its steps.
        seconds: How long they took.
        cpu_s: Seconds of processor time of each task in that time, by its name.
        error: Why there is nothing to tell.
    """

    num_steps: int = 0
    seconds: float = 0.0
    cpu_s: Mapping[str, float] = field(default_factory=dict[str, float])
    error: str | None = None

    @property
    def steps_per_second(self) -> float | None:
        """Return the speed, or `None` after a failure."""
        return self.num_steps / self.seconds if self.seconds else None

    def cpu_ms(self, kind: str, *, per: float) -> float | None:
        """Return a mean over the tasks of a type: milliseconds for each of `per` things."""
        found = [seconds for task, seconds in self.cpu_s.items() if task.startswith(kind)]
        return 1000.0 * sum(found) / len(found) / per if found and per else None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A moment at which a run has done so many steps."""

    time: float
    steps: int
    cpu_s: Mapping[str, float]


def timed_between(moments: Sequence[Seen], *, warm_steps: int, timed_s: float) -> Timed | None:
    """Return what lies between two moments, or `None` before the second one.

    Args:
        moments: In order.
        warm_steps: The first moment is the first one with so many steps.
        timed_s: The second moment is the first one so long after the first.
    """
    first = next((each for each in moments if each.steps >= warm_steps), None)
    if first is None:
        return None
    last = next((each for each in moments if each.time >= first.time + timed_s), None)
    if last is None:
        return None
    cpu_s = {task: used - first.cpu_s.get(task, 0.0) for task, used in last.cpu_s.items()}
    steps, seconds = last.steps - first.steps, last.time - first.time
    return Timed(num_steps=steps, seconds=seconds, cpu_s=cpu_s)


def time_run(
    arguments: Sequence[str],
    *,
    warm_steps: int,
    timed_s: float,
    timeout_s: float,
    on_tasks: Callable[[Mapping[str, int]], None] = lambda pids: None,
) -> Timed:
    """Run kdist on parameter servers until enough was seen, and end it.

    Args:
        arguments: Of kdist's command line, without epochs and the run folder.
        warm_steps: Steps that are not timed, at least.
        timed_s: Seconds to time, at least.
        timeout_s: After so long it is killed.
        on_tasks: Called once with the process ids of the tasks by name, when steps are done.
    """
    with tempfile.TemporaryDirectory(prefix="kdist-benchmark-") as folder:
        run_dir = Path(folder) / "run"
        watch = _Watch(run_dir, warm_steps=warm_steps, timed_s=timed_s, on_tasks=on_tasks)
        argv = processes.python(
            *("-m", "kdist", *arguments, "epochs=1", f"steps_per_epoch={_NO_END}"),
            *(f"hydra.run.dir={run_dir}", "checkpoint.every_epochs=null"),
        )
        finished = processes.run(argv, timeout_s=timeout_s, watch=watch)
        return watch.timed or Timed(error=finished.last_line)


class _Watch:
    """Follows a run's events, and ends it once enough was seen."""

    def __init__(
        self,
        run_dir: Path,
        *,
        warm_steps: int,
        timed_s: float,
        on_tasks: Callable[[Mapping[str, int]], None],
    ):
        self.timed: Timed | None = None
        self._path = run_dir / "events.jsonl"
        self._warm_steps = warm_steps
        self._timed_s = timed_s
        self._on_tasks = on_tasks
        self._num_read = 0
        self._pids: dict[str, int] = {}
        self._moments: list[Seen] = []

    def __call__(self, launcher: int) -> None:
        """Look; called ten times a second."""
        for event in self._new_events():
            if event["event"] == "task_started":
                self._pids[event["task"]] = event["pid"]
            if event["event"] != "steps_contributed":
                continue
            if not self._moments:
                self._on_tasks(self._pids)
            cpu_s = {task: cpu_seconds(pid) for task, pid in self._pids.items()}
            steps = max(event["updates"]) + 1
            self._moments.append(Seen(time=event["time"], steps=steps, cpu_s=cpu_s))
        self.timed = self.timed or timed_between(
            self._moments, warm_steps=self._warm_steps, timed_s=self._timed_s
        )
        if self.timed is not None:  # Nothing else is timed: let nobody tidy up for seconds.
            for pid in (launcher, *self._pids.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _new_events(self) -> list[dict]:
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8") as file:
            file.seek(self._num_read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._num_read += len(whole.encode())
        return [json.loads(line) for line in whole.splitlines()]


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, its ended threads included."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    return cpu_seconds_of(text)


def cpu_seconds_of(stat: str) -> float:
    """Return the processor time that a line of /proc/<pid>/stat tells."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S
