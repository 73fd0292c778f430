"""Lend this process's TensorFlow server to a coordinator: `host.py <addresses as JSON> <task>`.

Ends when its standard input does, so that it never outlives the test.
"""

import json
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["GRPC_FAIL_FAST"] = "use_caller"

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.distribute.strategies import start_server


def main() -> None:
    addresses = {TaskType(kind): tuple(a) for kind, a in json.loads(sys.argv[1]).items()}
    kind, index = sys.argv[2].split("-")
    server = start_server(ClusterSpec(addresses), Task(TaskType(kind), int(index)))
    print("serving", server.target, flush=True)
    sys.stdin.read()
    os._exit(0)


main()
