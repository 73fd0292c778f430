"""Main functions for tasks of launcher tests: each does what the configuration scripts for it."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from kdist import errors
from kdist.records.launch_story import read_story


def scripted(request, link):
    """Carry out this task's steps; return the exit code of the last `exit` step."""
    for name, *arguments in request.config["steps"].get(str(request.task), []):
        outcome = STEPS[name](request, link, *arguments)
        if outcome is not None:
            return outcome
    return 0


def _make_folder(request, link):
    os.makedirs(request.run_dir, exist_ok=request.attempt > 0)
    link.send("run_folder_ready")


def _raise(request, link, name, message, is_consequence=None):
    kind = getattr(errors, name, None) or getattr(__builtins__, name, None) or ValueError
    error = kind(message)
    if is_consequence is not None:
        error.is_consequence = is_consequence
    raise error


def _kill(request, link, name):
    sys.stdout.flush()
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(60)


class _InterruptedWhenAsked(str):
    """A module's name: asking how it begins, as the end of a process does, is interrupted."""

    __hash__ = str.__hash__

    def startswith(self, *args):
        os.kill(os.getpid(), signal.SIGINT)
        return super().startswith(*args)


def _be_interrupted_at_the_end(request, link):
    sys.modules[_InterruptedWhenAsked("interrupting")] = sys


class _Stopped(BaseException):
    exit_code = 143


class _StoppedWhenTold(Exception):
    """An error in whose text a signal comes, as the launcher's does where several tasks fail."""

    def __str__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return "failed"


def _be_stopped_while_failing(request, link):
    def stop(number, frame):
        raise _Stopped

    signal.signal(signal.SIGTERM, stop)
    raise _StoppedWhenTold


def _wait_for(request, link, path, num_lines=1):
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if os.path.exists(path):
            with open(path) as file:
                if len(file.readlines()) >= num_lines:
                    return
        time.sleep(0.01)
    raise TimeoutError(path)


def _append(request, link, path, line):
    with open(path, "a") as file:
        address = request.spec.address(request.task)
        file.write(line.format(pid=os.getpid(), task=request.task, address=address) + "\n")


def _start_grandchild(request, link, path):
    child = subprocess.Popen(["sleep", "600"])
    with open(path, "a") as file:
        file.write(f"{child.pid}\n")


def _take_signal(request, link, name, path, exit_code):
    def leave(number, frame):
        _append(request, link, path, f"{{task}} {signal.Signals(number).name}")
        os._exit(exit_code)

    signal.signal(getattr(signal, name), leave)


def _show_story_at_sigterm(request, link):
    """Do what a chief does that is told to stop: say how the run ended, and leave."""

    def leave(number, frame):
        _show_story(request, link)
        sys.stdout.flush()
        os._exit(143)

    signal.signal(signal.SIGTERM, leave)


def _leave_signals(request, link, path):
    """Take SIGTERM as a task does that ends when its step is done; note it."""
    signal.signal(signal.SIGTERM, lambda number, frame: _append(request, link, path, "{task}"))


def _compute(request, link):
    """Be where no handler can run, as in an operation of TensorFlow."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 30_000_000)


def _fork_and_signal(request, link):
    """Start a process as a pool of the user's does, and tell it to end."""
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    os.waitpid(pid, 0)


def _die_the_first_time(request, link, path):
    if _is_first_time(path):
        os.kill(os.getpid(), signal.SIGKILL)


def _kill_forkserver_the_first_time(request, link, path):
    if _is_first_time(path):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)


def _is_first_time(path):
    if os.path.exists(path):
        return False
    with open(path, "w") as file:
        file.write("x\n")
    return True


def _freeze_the_first_time(request, link, path):
    if _is_first_time(path):
        os.kill(os.getpid(), signal.SIGSTOP)


def _lose_the_first_time(request, link, path):
    if _is_first_time(path):
        raise errors.PeerLostError("a peer was lost")


def _wait_for_attempt(request, link, attempt, then):
    """Hang, to be started again, before this attempt; do one more step in it."""
    if request.attempt < attempt:
        time.sleep(600)
    return STEPS[then[0]](request, link, *then[1:])


def _kill_before_attempt(request, link, attempt):
    if request.attempt < attempt:
        os.kill(os.getpid(), signal.SIGKILL)


def _progress_while_few(request, link, path, num_lines):
    with open(path) as file:
        num_starts = len(file.readlines())
    if num_starts < num_lines:
        link.send("progressed", batches_seen=num_starts)


def _write_result(request, link, content):
    with open(os.path.join(request.run_dir, "result.json"), "w") as file:
        json.dump(content, file)


def _show_story(request, link):
    """Print what a chief tells at the end: restarts, workers lost, and the failure's task."""
    story = read_story(pathlib.Path(request.run_dir) / "events.jsonl", request.started_at_s)
    failed = story.failure and story.failure["task"]
    print(story.num_restarts, story.num_workers_lost, failed)


STEPS = {
    "show_story": _show_story,
    "freeze_the_first_time": _freeze_the_first_time,
    "lose_the_first_time": _lose_the_first_time,
    "wait_for_attempt": _wait_for_attempt,
    "kill_before_attempt": _kill_before_attempt,
    "progress_while_few": _progress_while_few,
    "write_result": _write_result,
    "make_folder": _make_folder,
    "print": lambda request, link, text: print(text),
    "write": lambda request, link, text: (os.write(1, text.encode()), None)[1],
    "send": lambda request, link, event, fields: link.send(event, **fields),
    "exit": lambda request, link, code: code,
    "call_exit": lambda request, link, code: sys.exit(code),
    "leave": lambda request, link, code: os._exit(code),
    "raise": _raise,
    "kill": _kill,
    "append": _append,
    "wait_for": _wait_for,
    "be_interrupted_at_the_end": _be_interrupted_at_the_end,
    "be_stopped_while_failing": _be_stopped_while_failing,
    "hang": lambda request, link: time.sleep(600),
    "ignore": lambda request, link, name: (
        signal.signal(getattr(signal, name), signal.SIG_IGN),
        None,
    )[1],
    "take_signal": _take_signal,
    "leave_signals": _leave_signals,
    "show_story_at_sigterm": _show_story_at_sigterm,
    "compute": _compute,
    "fork_and_signal": _fork_and_signal,
    "start_grandchild": _start_grandchild,
    "die_the_first_time": _die_the_first_time,
    "kill_forkserver_the_first_time": _kill_forkserver_the_first_time,
    "show": lambda request, link, code: print(eval(code)),
    "remove": lambda request, link, path: os.remove(path),
}


def with_tensorflow(request, link):
    """Serve and compute with TensorFlow, which the fork server has imported already."""
    assert "tensorflow" in sys.modules and "keras" in sys.modules
    import tensorflow as tf

    if request.spec.is_distributed:
        cluster = tf.train.ClusterSpec(request.spec.as_dict())
        task = request.task
        tf.distribute.Server(cluster, job_name=str(task.type), task_index=task.index, start=True)
    print("sum", float(tf.reduce_sum(tf.ones((10, 10)) @ tf.ones((10, 10)))))
    return 0
