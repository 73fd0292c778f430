"""What the tasks of a cluster compare before they start."""

import dataclasses

import pytest

from kdist.assembly.task import compared
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import traits_of
from kdist.launch.request import TaskRequest

REQUEST = TaskRequest(
    config={"epochs": 3, "verbose": True, "cluster": {"key": "secret", "ps": 1}, "data": {}},
    config_yaml="",
    typed_keys=(),
    spec=ClusterSpec({TaskType.WORKER: ("a:1", "b:1")}),
    task=Task(TaskType.WORKER, 0),
    run_dir="run",
    is_local=False,
)
SETTINGS = {"epochs": 3, "cluster.ps": 1, "data": {}}


@pytest.mark.parametrize(
    ("num_devices", "accelerators", "found"),
    [(1, (), "1 on the CPU"), (2, (0, 1), "2 on accelerators"), (0, (), "1 on the CPU")],
)
def test_workers_compare_settings_and_devices(num_devices, accelerators, found):
    request = dataclasses.replace(REQUEST, num_devices=num_devices, accelerators=accelerators)
    assert compared(request, traits_of("multiworker")) == {
        **SETTINGS,
        "replicas of a worker": found,
    }


def test_tasks_that_do_different_work_compare_settings_only():
    assert compared(REQUEST, traits_of("ps")) == SETTINGS
