"""A run as a row of attempts: all tasks start again after a loss, from the last checkpoint."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.launch.outcome import AttemptEnd, Restart
from kdist.launch.request import TaskRequest
from kdist.launch.supervisor import Supervisor
from kdist.launch.surroundings import Surroundings

FindPorts = Callable[[str, int], tuple[int, ...]]


def run_attempts(
    requests: Sequence[TaskRequest], around: Surroundings, find_ports: FindPorts
) -> tuple[AttemptEnd, Sequence[TaskRequest]]:
    """Run tasks until the run has ended, however many attempts that takes.

    Args:
        requests: The tasks of the first attempt.
        around: What all attempts share; its budget bounds their number.
        find_ports: Returns that many different free ports of a host.

    Returns:
        The end of the last attempt, and its requests.

    Raises:
        KdistError: If tasks could not be started.
    """
    while True:
        ended = Supervisor(requests, around).run()
        folder = around.journal.folder
        if ended.restart is None or folder is None:
            return ended, requests
        requests = next_requests(
            requests, ended.restart, run_dir=folder.path, find_ports=find_ports
        )
        around.journal.begin_attempt(requests[0].attempt, ended.restart)


def next_requests(
    requests: Sequence[TaskRequest], restart: Restart, *, run_dir: Path, find_ports: FindPorts
) -> list[TaskRequest]:
    """Return the requests of the next attempt: the same tasks, on ports of their own.

    The kernel may still hold the old ones, and a task of the last attempt that is not gone yet
    must meet nobody of this one. Where a task is left out, those of its type close ranks.
    """
    survivors = [request for request in requests if request.task != restart.without]
    counts = Counter[TaskType]()
    tasks: list[Task] = []
    for request in survivors:
        tasks.append(Task(request.task.type, counts[request.task.type]))
        counts[request.task.type] += 1
    old = [request.spec.address(request.task) for request in survivors]
    hosts = [address.rpartition(":")[0] for address in old]
    ports = [address.rpartition(":")[2] for address in old]
    if ports != ["0"]:  # A run of one task serves nothing.
        found = find_ports(hosts[0].removeprefix("[").removesuffix("]"), len(hosts))
        ports = [str(port) for port in found]
    spec = ClusterSpec(
        {
            kind: tuple(
                f"{host}:{port}"
                for task, host, port in zip(tasks, hosts, ports, strict=True)
                if task.type is kind
            )
            for kind in TaskType
            if counts[kind]
        }
    )
    return [
        dataclasses.replace(
            request,
            spec=spec,
            task=task,
            attempt=request.attempt + 1,
            run_dir=str(run_dir),
            may_rename_run_dir=False,
        )
        for request, task in zip(survivors, tasks, strict=True)
    ]
