"""Requests for launcher tests."""

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import TaskType
from kdist.launch.request import Console, TaskRequest


def make_requests(steps, run_dir, *, chief=1, worker=0, ps=0, **config):
    counts = {TaskType.CHIEF: chief, TaskType.WORKER: worker, TaskType.PS: ps}
    spec = ClusterSpec(
        {
            kind: tuple(f"127.0.0.1:{4000 + 100 * place + index}" for index in range(num))
            for place, (kind, num) in enumerate(counts.items())
            if num
        }
    )
    return [
        TaskRequest(
            config={"steps": steps, **config},
            config_yaml="",
            typed_keys=(),
            spec=spec,
            task=task,
            run_dir=str(run_dir),
            is_local=True,
            choice_line="",
            console=Console(is_terminal=False, width=80, color=False),
            objects=None,
        )
        for task in spec.tasks()
    ]
