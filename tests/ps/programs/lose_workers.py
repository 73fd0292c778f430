"""Train while workers are lost and come back: `lose_workers.py <addresses as JSON>`.

Asks the test, one line each, to "kill" or "start" a task and reads a line when that was done.
Prints what training came to as the last line, in JSON.
"""

import json
import os
import sys
import threading
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["GRPC_FAIL_FAST"] = "use_caller"

import keras
import numpy as np

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import TaskType
from kdist.distribute.inner_loop import never_stop
from tests.engine.harness import numpy_weights
from tests.ps.models import (
    BATCH_SIZE,
    after_constant_steps,
    constant_gradient,
    numbered_rows,
    seen_counts,
)
from tests.ps.trainings import Trainings

STEPS = 120
STEPS_PER_CALL = 10


def make_optimizer():
    return keras.optimizers.SGD(2.0**-6, momentum=0.9)


def ask(request: str) -> None:
    print(request, flush=True)
    sys.stdin.readline()


def ask_after(store, num_applied: int, *requests: str) -> threading.Thread:
    """Ask as soon as the servers have applied so many steps, in the middle of dispatches."""

    def wait() -> None:
        while int(store.num_applied.numpy()) < num_applied:
            time.sleep(0.002)
        for request in requests:
            ask(request)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def main() -> None:
    addresses = {TaskType(kind): tuple(a) for kind, a in json.loads(sys.argv[1]).items()}
    trainings = Trainings(ClusterSpec(addresses))
    num_rows = STEPS * BATCH_SIZE
    build = constant_gradient(make_optimizer, num_rows=num_rows, is_slow=True)
    run = trainings.prepare(build, {"train": numbered_rows(num_rows)}, workers=2)
    store, start = run.loop.store, numpy_weights(run.model)

    def train(first: int, num_steps: int) -> None:
        run.loop.train(first, num_steps, steps_per_call=STEPS_PER_CALL, on_progress=never_stop)

    asked = ask_after(store, 25, "kill worker-1")
    train(0, 60)
    asked.join()
    ask("start worker-1")
    asked = ask_after(store, 75, "kill worker-0", "start worker-0")
    train(60, 60)
    asked.join()
    store.write_to_model()
    results = run.loop.logs.results(run.loop.read_logs())
    expected = after_constant_steps(start, make_optimizer(), STEPS)
    weights = numpy_weights(run.model)
    outcome = {
        "off_by": max(float(np.abs(a - b).max()) for a, b in zip(weights, expected, strict=True)),
        "num_updates": [optimizer.num_updates for optimizer in store.optimizers],
        "examples": run.loop.logs.num_examples(run.loop.read_logs()),
        "seen": results["seen"],
        "seen_once": bool((seen_counts(run.model) == 1).all()),
    }
    print(json.dumps(outcome), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
