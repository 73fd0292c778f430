"""What programs share that train while a test kills and starts their workers.

They ask the test, one line each, to "kill" or "start" a task and read a line when that was done.
Their last line is what training came to, in JSON.
"""

import json
import os
import sys
import threading

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["GRPC_FAIL_FAST"] = "use_caller"

import keras
import numpy as np

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import TaskType
from kdist.distribute.loops.inner_loop import never_stop
from tests.e2e.kit import wait_until
from tests.engine.harness import numpy_weights
from tests.ps.models import (
    BATCH_SIZE,
    after_constant_steps,
    constant_gradient,
    numbered_rows,
    seen_counts,
)
from tests.ps.trainings import Trainings


def make_optimizer():
    return keras.optimizers.SGD(2.0**-6, momentum=0.9)


def connected() -> Trainings:
    """Return trainings on the cluster that the program's argument names, addresses as JSON."""
    addresses = {TaskType(kind): tuple(a) for kind, a in json.loads(sys.argv[1]).items()}
    return Trainings(ClusterSpec(addresses))


class SlowTraining:
    """A training of two workers whose result is known, with steps that take their time."""

    def __init__(self, trainings: Trainings, num_steps: int, **settings):
        self._trainings = trainings  # They hold the strategy, which the loop refers to weakly.
        num_rows = num_steps * BATCH_SIZE
        build = constant_gradient(make_optimizer, num_rows=num_rows, is_slow=True)
        self._run = trainings.prepare(
            build, {"train": numbered_rows(num_rows)}, workers=2, **settings
        )
        self.store = self._run.loop.store
        self._start = numpy_weights(self._run.model)
        self._num_steps = num_steps

    def train(self, first: int, num_steps: int, steps_per_call: int = 1) -> None:
        self._run.loop.train(
            first, num_steps, steps_per_call=steps_per_call, on_progress=never_stop
        )

    def ask_after(self, num_applied: int, *requests: str) -> threading.Thread:
        """Ask as soon as the servers have applied so many steps, in the middle of dispatches."""

        def wait() -> None:
            wait_until(
                lambda: int(self.store.num_applied.numpy()) >= num_applied,
                60,
                f"servers have applied {num_applied} steps",
            )
            for request in requests:
                ask(request)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    def outcome(self) -> dict:
        """Return what it came to, and how far the weights are off."""
        self.store.write_to_model()
        loop, model = self._run.loop, self._run.model
        expected = after_constant_steps(self._start, make_optimizer(), self._num_steps)
        pairs = zip(numpy_weights(model), expected, strict=True)
        return {
            "off_by": max(float(np.abs(a - b).max()) for a, b in pairs),
            "num_updates": [optimizer.num_updates for optimizer in self.store.optimizers],
            "examples": loop.logs.num_examples(loop.read_logs()),
            "seen": loop.logs.results(loop.read_logs())["seen"],
            "seen_once": bool((seen_counts(model) == 1).all()),
        }


def ask(request: str) -> None:
    print(request, flush=True)
    sys.stdin.readline()


def end_with(outcome: dict) -> None:
    print(json.dumps(outcome), flush=True)
    os._exit(0)
