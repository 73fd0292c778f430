"""Runs that lose tasks, and what must hold of them afterwards."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

from tests.e2e.kit import Run, cluster_of, is_alive, leftovers, wait_until

STEPS_PER_EPOCH = 10
EXAMPLES_PER_EPOCH = 640
WORK = ("data=synthetic", "data.num_examples=800", "data.num_features=16", "hydra.run.dir=run")
HOLDING = Path(__file__).parent / "holding.py"
HEARTBEAT_S = 8.0  # Short enough to wait for, long enough for a machine with other work to do.
_RUN_FILES = re.compile(
    r"config\.yaml|result\.json|metrics\.csv|events\.jsonl|model\.keras|curves\.png|\.lock"
    r"|(placement|staleness)[a-z_.]*|logs/[a-z]+-\d+\.log|tensorboard/.*"
    r"|checkpoints/step-\d+(-\d+)?/[^/.]+(\.[a-z]+(-\d+-of-\d+)?)?"
)


def held_at(hook, epoch):
    """Return arguments of a run that waits in a hook until `let_go`; see `holding.Holds`."""
    place = {"_target_": "holding.Holds", "hook": hook, "epoch": epoch}
    return tuple(f"++callbacks.hold.{key}={value}" for key, value in place.items())


class Held:
    """What a test does with a run that waits for it; `folder` is where the run was started."""

    folder: Path

    def wait_until_held(self, deadline_s=90):
        """Wait until the run waits."""
        wait_until((self.folder / "held").exists, deadline_s, "the run waits in its callback")

    def let_go(self):
        """Let it go on; a later attempt does not wait again."""
        (self.folder / "go").touch()


class FaultyRun(Held):
    """One run under the launcher of this machine, whose tasks a test kills and stops."""

    def __init__(self, bench, mode, *argv, epochs):
        """Start it."""
        self.mode = mode
        self.epochs = epochs
        self.folder = bench.folder
        self.run = Run(bench.folder / "run")
        self.temporary = bench.temporary_folder()
        shutil.copy(HOLDING, bench.folder)
        self.command = bench.start(
            *(*mode.argv, *WORK, f"epochs={epochs}"),
            *(f"cluster.heartbeat_timeout_s={HEARTBEAT_S:g}", *argv),
            TMPDIR=str(self.temporary),
        )

    def wait_for_epochs(self, num_epochs, deadline_s=90):
        """Wait until the run has ended so many epochs, by the last one's number, or altogether.

        Returns:
            Whether the run still goes on.
        """
        wait_until(
            lambda: self.epochs_ended() >= num_epochs or self.has_ended(),
            deadline_s,
            f"epoch {num_epochs} of {self.mode}",
        )
        return not self.has_ended()

    def epochs_ended(self):
        """Return the number of the epoch that has ended last."""
        ended = [event["epoch"] for event in self.run.events if event["event"] == "epoch_ended"]
        return ended[-1] if ended else 0

    def has_ended(self):
        """Whether the command has returned."""
        return self.command.process.poll() is not None

    def strike(self, task, number=signal.SIGKILL):
        """Kill or stop the latest process of a task; return when that was, in wall time."""
        pid = self.command.tasks(self.run.path)[task]
        assert is_alive(pid), f"{task} is gone already"
        os.kill(pid, number)
        return time.time()

    def wait_until_recovered(self, since_s, deadline_s=90):
        """Wait until a task was started again and an epoch ended after that.

        Returns:
            Seconds from `since_s` (wall time) until then; `None` if the run ended before that.
        """

        def recovered_at_s():
            restarted = [e for e in self.events_since(since_s) if e["event"] == "task_restarted"]
            if not restarted:
                return None
            ended = [e for e in self.events_since(restarted[0]["time"]) if is_progress(e)]
            return ended[0]["time"] if ended else None

        wait_until(
            lambda: recovered_at_s() is not None or self.has_ended(), deadline_s, "it recovers"
        )
        at_s = recovered_at_s()
        return None if at_s is None else at_s - since_s

    def events_since(self, since_s):
        """Return the events from a time on; they are written to the millisecond."""
        return [event for event in self.run.events if event["time"] >= since_s - 0.001]

    def events_of(self, name):
        """Return the events of one name."""
        return [event for event in self.run.events if event["event"] == name]

    def wait_for_the_end(self, deadline_s=120):
        """Wait until the command has returned; return its result."""
        self.command.wait(deadline_s)
        return self.run.result

    def evidence(self):
        """Return what a failed test shows."""
        return self.command.evidence() + self.run.evidence()


def is_progress(event):
    """Whether an event shows that training goes on."""
    return event["event"] in ("epoch_ended", "run_ended")


def check_completed(faulty):
    """Assert that a run has done all of its work exactly once, and left nothing behind."""
    result, epochs = faulty.wait_for_the_end(), faulty.epochs
    assert (faulty.command.code, result["status"], result["error"]) == (0, "completed", None)
    check_counts(result, faulty.run, epochs)
    assert leftovers(faulty.command) == {}
    assert unexpected_files(faulty.run.path) == []
    # A killed task cannot remove the modules that TensorFlow's AutoGraph has written.
    left = [path.name for path in faulty.temporary.iterdir()]
    assert [name for name in left if not name.startswith("__autograph_generated_file")] == []
    return result


def check_counts(result, run, epochs):
    """Assert that every epoch was trained once, with all of its rows."""
    steps = epochs * STEPS_PER_EPOCH
    assert (result["batches_seen"], result["global_step"]) == (steps, steps)
    assert result["examples_seen"] == epochs * EXAMPLES_PER_EPOCH
    assert [int(row["epoch"]) for row in run.rows] == list(range(1, epochs + 1))
    assert {int(row["examples"]) for row in run.rows} == {EXAMPLES_PER_EPOCH}
    assert int(run.rows[-1]["global_step"]) == steps


def unexpected_files(run_dir):
    """Return the files of a run folder that a run does not leave there."""
    files = [
        path.relative_to(run_dir).as_posix() for path in Path(run_dir).rglob("*") if path.is_file()
    ]
    return sorted(name for name in files if not _RUN_FILES.fullmatch(name))


class Scheduler(Held):
    """Plays a foreign scheduler: starts every task with TF_CONFIG, and again those that ask so."""

    def __init__(self, bench, mode, *argv, epochs):
        """Start all tasks on ports of their own."""
        self.mode = mode
        self.epochs = epochs
        self.folder = bench.folder
        self.run = Run(bench.folder / "run")
        self.num_starts = dict.fromkeys(mode.tasks, 0)
        self.codes = {task: [] for task in mode.tasks}
        self._bench = bench
        shutil.copy(HOLDING, bench.folder)
        self._cluster = cluster_of(**dict(mode.cluster))
        self._argv = (
            *(*mode.strategy, *WORK, f"epochs={epochs}"),
            *(f"cluster.heartbeat_timeout_s={HEARTBEAT_S:g}", *argv),
        )
        self._commands = {}
        for task in mode.tasks:
            self._start(task)

    def _start(self, task):
        self.num_starts[task] += 1
        self._commands |= self._bench.start_cluster(self._cluster, *self._argv, tasks=[task])

    def strike(self, task, number=signal.SIGKILL):
        """Kill or stop a task."""
        os.kill(self._commands[task].process.pid, number)

    def command(self, task):
        """Return the latest command of a task."""
        return self._commands[task]

    def look_after(self):
        """Start again what was lost or asks for it; return whether a task is still there."""
        for task, command in list(self._commands.items()):
            code = command.process.poll()
            if code is None:
                continue
            self.codes[task].append(code)
            del self._commands[task]
            if code == 75 or code < 0:
                assert self.num_starts[task] < 6, f"{task} never holds: {self.codes}"
                self._start(task)
        return bool(self._commands)

    def look_after_until(self, is_reached, deadline_s, what):
        """Do so until a fact shows."""
        wait_until(lambda: (self.look_after(), is_reached())[1], deadline_s, what)

    def look_after_to_the_end(self, deadline_s=150):
        """Do so until no task is left; return the result."""
        wait_until(lambda: not self.look_after(), deadline_s, f"all of {self.mode} end")
        assert leftovers(*self._bench.commands) == {}
        return self.run.result

    def epochs_ended(self):
        """Return the number of the epoch that has ended last."""
        ended = [event["epoch"] for event in self.run.events if event["event"] == "epoch_ended"]
        return ended[-1] if ended else 0

    def has_event(self, name):
        """Whether there was such an event."""
        return any(event["event"] == name for event in self.run.events)

    def evidence(self):
        """Return what a failed test shows."""
        return json.dumps(self.codes) + self.run.evidence()
