"""One task of a control channel as a process of its own: says what happens, line by line.

python task_program.py '{"addresses": {...}, "task": "worker-0", "lost_timeout_s": 1.0, ...}'
"""

import json
import os
import sys
import threading

from kdist.cluster.control import ControlChief, ControlPeer
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.errors import KdistError, exit_code_of

CONFIG = {"seed": 0, "optimizer.learning_rate": 0.01}  # As in conftest.py.


def say(line):
    print(line, flush=True)


def main():
    options = json.loads(sys.argv[1])
    spec = ClusterSpec(
        {TaskType(kind): tuple(listed) for kind, listed in options["addresses"].items()}
    )
    kind, _, index = options["task"].partition("-")
    task = Task(TaskType(kind), int(index))
    if task == spec.chief:
        chief = ControlChief(
            spec,
            CONFIG,
            start_timeout_s=20,
            lost_timeout_s=options["lost_timeout_s"],
            say=say,
        )
        chief.rendezvous()
        if not options.get("is_starting"):
            chief.ready()
            chief.broadcast("ready")
        say("go")
        threading.Event().wait(60)
        return 1

    def leave(error):
        say(f"lost: {error}")
        os._exit(exit_code_of(error))

    is_blocked = options.get("is_blocked", False)
    peer = ControlPeer(
        spec,
        task,
        CONFIG,
        start_timeout_s=options.get("start_timeout_s", 20),
        lost_timeout_s=options["lost_timeout_s"],
        say=say,
        on_lost=leave if is_blocked else lambda error: None,
        on_ended=(lambda code: os._exit(code)) if is_blocked else lambda code: None,
    )
    try:
        peer.rendezvous()
        if options.get("serves_tensorflow"):
            serve_tensorflow(spec, task)
        peer.ready()
        say("go")
        if is_blocked:
            threading.Event().wait(60)  # As in a collective that never returns.
        if options.get("decides"):
            say(f"decision: {peer.receive_decision(20)}")
        peer.finished()
        code = peer.wait_done()
    except KdistError as error:
        say(f"{type(error).__name__}: {error}")
        return exit_code_of(error)
    say(f"done: {code}")
    return code


def serve_tensorflow(spec, task):
    import tensorflow as tf

    cluster = tf.train.ClusterSpec(spec.as_dict())
    tf.distribute.Server(cluster, job_name=str(task.type), task_index=task.index, start=True)


if __name__ == "__main__":
    sys.exit(main())
