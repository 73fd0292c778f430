"""Train cases as one of several workers: `train_as_worker.py <addresses> <index> <file> <case>...`.

Worker 0 writes weights and histories into the file. Then each of them waits for the end of its
standard input, so that nobody leaves before the others and none outlives the test.
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
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import traits_of
from kdist.distribute.shares import WorkerShare
from kdist.distribute.strategies import make_strategy
from tests.engine.cases import CASES
from tests.engine.harness import train


def main() -> None:
    addresses, index, file, *names = sys.argv[1:]
    spec = ClusterSpec({TaskType.WORKER: tuple(json.loads(addresses))})
    task = Task(TaskType.WORKER, int(index))
    strategy = make_strategy(traits_of("multiworker"), spec, task, num_devices=1, collective="auto")
    share = WorkerShare(worker_index=task.index, num_workers=spec.num(TaskType.WORKER))
    found = {}
    for name in names:
        case = CASES[name]
        outcome = train(
            case.build,
            case.data,
            placed=(strategy, share),
            batch_size=case.batch_size,
            class_weight=case.class_weight,
            **case.mirrored,
        )
        found |= {f"{name}/weight{i}": value for i, value in enumerate(outcome.weights)}
        found |= {f"{name}/{key}": values for key, values in outcome.history.items()}
        keras.backend.clear_session()
        print("trained", name, flush=True)
    if task.index == 0:
        np.savez(f"{file}.unfinished.npz", **found)
        os.replace(f"{file}.unfinished.npz", file)
    sys.stdin.read()
    os._exit(0)


main()
