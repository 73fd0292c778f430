"""Train synchronously while workers are lost: `lose_sync_workers.py <addresses as JSON>`.

Asks the test, one line each, to "kill" or "start" a task and reads a line when that was done.
Prints what training came to as the last line, in JSON.
"""

import json
import os
import sys

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
from tests.ps.programs.lose_workers import ask, ask_after
from tests.ps.trainings import Trainings

STEPS = 60
# The steps of a second stretch, which begins when the requests are fulfilled.
STEPS_AFTER = 20


def make_optimizer():
    return keras.optimizers.SGD(2.0**-6, momentum=0.9)


def train(trainings: Trainings, num_shares: int, *requests: str) -> dict:
    """Train while the requests are fulfilled in the middle of it; return what it came to."""
    num_rows = STEPS * BATCH_SIZE
    build = constant_gradient(make_optimizer, num_rows=num_rows, is_slow=True)
    strategy = {"update": "sync", "replicas_to_aggregate": num_shares}
    run = trainings.prepare(build, {"train": numbered_rows(num_rows)}, workers=2, strategy=strategy)
    store, start = run.loop.store, numpy_weights(run.model)
    asked = ask_after(store, 15, *requests)
    first = STEPS - STEPS_AFTER
    run.loop.train(0, first, steps_per_call=1, on_progress=never_stop)
    asked.join()
    run.loop.train(first, STEPS_AFTER, steps_per_call=1, on_progress=never_stop)
    store.write_to_model()
    results = run.loop.logs.results(run.loop.read_logs())
    expected = after_constant_steps(start, make_optimizer(), STEPS)
    facts = store.tallies.contributions.read()
    return {
        "is_exact": all(
            np.abs(a - b).max() < 1e-5
            for a, b in zip(numpy_weights(run.model), expected, strict=True)
        ),
        "num_updates": [optimizer.num_updates for optimizer in store.optimizers],
        "seen": results["seen"],
        "seen_once": bool((seen_counts(run.model) == 1).all()),
        "shares": facts.num_taken,
        "workers": sorted(facts.by_worker),
    }


def main() -> None:
    addresses = {TaskType(kind): tuple(a) for kind, a in json.loads(sys.argv[1]).items()}
    trainings = Trainings(ClusterSpec(addresses))
    needed = train(trainings, 2, "kill worker-1", "start worker-1")
    backup = train(trainings, 1, "kill worker-0")
    ask("start worker-0")
    print(json.dumps({"needed": needed, "backup": backup}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
