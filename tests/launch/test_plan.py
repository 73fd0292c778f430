"""A launch plan: tasks, addresses, devices and batch shares, decided without a machine."""

import textwrap

import pytest

from kdist import config as kdist_config
from kdist.cluster.choose import Choice
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.tf_config import Membership, decode
from kdist.errors import ConfigError
from kdist.launch.plan import build_plan
from kdist.launch.plan_text import render_plan


def count_up(host, num_ports):
    return tuple(range(4000, 4000 + num_ports))


def plan_of(strategy, membership=None, num_accelerators=0, typed_keys=(), **content):
    loaded = kdist_config.load({"strategy": {"name": strategy, **content.pop("of", {})}, **content})
    return build_plan(
        loaded,
        Choice(strategy, "as configured"),
        membership,
        num_accelerators=num_accelerators,
        find_ports=count_up,
        typed_keys=typed_keys,
    )


def member(task_type, index=0, **nums):
    addresses = {TaskType(k): tuple(f"{k}{i}:2222" for i in range(n)) for k, n in nums.items()}
    return Membership(ClusterSpec(addresses), Task(task_type, index))


def test_the_plan_of_parameter_servers_as_text():
    plan = plan_of("ps", cluster={"workers": 2, "ps": 1}, data={"batch_size": 32})
    text = render_plan(plan, ["+strategy=ps", "++model.name='a b'"])
    cluster = (
        '{"cluster": {"chief": ["127.0.0.1:4000"], "worker": ["127.0.0.1:4001", "127.0.0.1:4002"],'
        ' "ps": ["127.0.0.1:4003"]}, "task": {"type": "TYPE", "index": INDEX}}'
    )

    def tf_config(kind, index):
        return "TF_CONFIG='" + cluster.replace("TYPE", kind).replace("INDEX", str(index)) + "'"

    command = """python -m kdist +strategy=ps '++model.name='"'"'a b'"'"''"""

    assert text == textwrap.dedent(
        f"""\
        strategy=ps: as configured
        Mode: ps (in-graph, async)
        Batch: 32 examples of one worker an update, 2 worker(s)

        task      address         devices  each batch
        chief-0   127.0.0.1:4000  CPU      drives the workers
        worker-0  127.0.0.1:4001  CPU      32 examples
        worker-1  127.0.0.1:4002  CPU      32 examples
        ps-0      127.0.0.1:4003  CPU      holds parameters

        The same run by hand, one command a task:
        # chief-0
        {tf_config("chief", 0)} {command}
        # worker-0
        {tf_config("worker", 0)} {command}
        # worker-1
        {tf_config("worker", 1)} {command}
        # ps-0
        {tf_config("ps", 0)} {command}
        """
    )


@pytest.mark.parametrize(("update", "rows"), [("async", [32, 32]), ("sync", [16, 16])])
def test_between_graph_workers_have_no_coordinator(update, rows):
    """Worker 0 leads, and computes as the others do."""
    of = {"replication": "between_graph", "update": update}
    plan = plan_of("ps", of=of, cluster={"workers": 2, "ps": 1}, data={"batch_size": 32})
    assert [str(task.task) for task in plan.tasks] == ["worker-0", "worker-1", "ps-0"]
    assert str(plan.spec.chief) == "worker-0"
    assert [sum(task.batch_rows) for task in plan.tasks] == [*rows, 0]


def test_the_plan_of_split_devices_as_text():
    text = render_plan(plan_of("mirrored", of={"devices": 3}, data={"batch_size": 64}))
    assert text == textwrap.dedent(
        """\
        strategy=mirrored: as configured
        Mode: mirrored (in-graph, sync)
        Batch: 64 examples an update, over 3 replica(s)
        Note: The CPU of each task is split into 3 virtual devices.

        task     address  devices                 each batch
        chief-0  -        CPU, 3 virtual devices  22 or 21 examples, on each of 3 devices
        """
    )


def test_every_tf_config_of_a_plan_is_the_task_it_stands_for():
    plan = plan_of("ps")
    for planned in plan.tasks:
        assert planned.tf_config is not None
        membership = decode({"TF_CONFIG": planned.tf_config})
        assert membership == Membership(plan.spec, planned.task)


@pytest.mark.parametrize("strategy", ["single", "mirrored"])
def test_one_process_needs_no_ports(strategy):
    plan = plan_of(strategy)
    assert [str(planned.task) for planned in plan.tasks] == ["chief-0"]
    assert plan.tasks[0].tf_config is None
    assert not plan.spec.is_distributed


@pytest.mark.parametrize(
    ("batch_size", "workers", "devices", "rows"),
    [
        (64, 2, 1, [(32,), (32,)]),
        (64, 3, 1, [(21,), (21,), (22,)]),
        (7, 2, 2, [(1, 2), (2, 2)]),
        (1, 2, 1, [(1,), (0,)]),
    ],
)
def test_a_global_batch_is_shared_without_loss(batch_size, workers, devices, rows):
    plan = plan_of(
        "multiworker",
        num_accelerators=4,
        of={"devices": devices},
        cluster={"workers": workers},
        data={"batch_size": batch_size},
    )
    assert [planned.batch_rows for planned in plan.tasks] == rows
    assert sum(map(sum, rows)) == batch_size


@pytest.mark.parametrize(
    ("strategy", "num_accelerators", "content", "accelerators"),
    [
        ("single", 4, {}, [(0,)]),
        ("mirrored", 4, {}, [(0, 1, 2, 3)]),
        ("mirrored", 4, {"of": {"devices": 2}}, [(0, 1)]),
        ("mirrored", 1, {"of": {"devices": 2}}, [()]),
        ("multiworker", 4, {}, [(0, 1), (2, 3)]),
        ("multiworker", 1, {}, [(), ()]),
        ("ps", 2, {"cluster": {"ps": 1}}, [(), (0,), (1,), ()]),
        ("ps", 1, {"cluster": {"ps": 1}}, [(), (), (), ()]),
    ],
)
def test_local_tasks_share_the_accelerators(strategy, num_accelerators, content, accelerators):
    plan = plan_of(strategy, num_accelerators=num_accelerators, **content)
    assert [planned.accelerators for planned in plan.tasks] == accelerators


def test_too_few_accelerators_are_said():
    plan = plan_of("mirrored", num_accelerators=1, of={"devices": 2})
    assert "1 accelerator(s): it runs on the CPU" in plan.notes[0]
    assert "split into 2" in plan.notes[1]


def test_a_task_of_tf_config_has_its_machine_to_itself():
    plan = plan_of("multiworker", member("worker", 1, worker=2), num_accelerators=2)
    assert [planned.accelerators for planned in plan.tasks] == [(), (0, 1)]
    assert [planned.is_elsewhere for planned in plan.tasks] == [True, False]
    assert "of its machine" in render_plan(plan)
    assert plan.notes == ()


def test_a_typed_number_of_tasks_that_is_not_used_is_said():
    assert plan_of("mirrored", typed_keys=("cluster.workers",)).notes == (
        "cluster.workers is not used: strategy=mirrored.",
    )
    membership = member("worker", worker=2)
    plan = plan_of("multiworker", membership, typed_keys=("cluster.workers",))
    assert plan.notes == ("cluster.workers is not used: TF_CONFIG names the tasks.",)


def test_the_host_may_be_an_ipv6_address():
    assert plan_of("multiworker", cluster={"host": "::1"}).spec.as_dict() == {
        "worker": ["[::1]:4000", "[::1]:4001"]
    }


@pytest.mark.parametrize(
    ("strategy", "content", "said"),
    [
        ("ps", {"cluster": {"ps": 0}}, "cluster.ps=0"),
        ("ps", {"cluster": {"workers": 0}}, "cluster.workers=0"),
        ("multiworker", {"cluster": {"workers": 0}}, "cluster.workers=0"),
        ("mirrored", {"of": {"collective": "nccl"}}, "strategy.collective=nccl"),
    ],
)
def test_what_this_machine_cannot_run_is_refused(strategy, content, said):
    with pytest.raises(ConfigError, match=said):
        plan_of(strategy, **content)


def test_a_cluster_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"no cluster\.ps"):
        plan_of("ps", member("worker", worker=2))


def test_several_cpu_replicas_in_a_worker_are_refused():
    with pytest.raises(ConfigError, match="On the CPU a worker has one replica"):
        plan_of("multiworker", num_accelerators=3, of={"devices": 2})


def test_backup_workers_compute_shares_of_the_batch_too():
    """Each of three workers computes half a batch, of which two make an update."""
    of = {"update": "sync", "replicas_to_aggregate": 2}
    plan = plan_of("ps", of=of, cluster={"workers": 3, "ps": 1}, data={"batch_size": 9})
    rows = [task.batch_rows for task in plan.tasks if task.task.type is TaskType.WORKER]
    assert rows == [(4,), (5,), (4,)]
    of["total_replicas"] = 2
    plan = plan_of("ps", of=of, cluster={"workers": 3, "ps": 1}, data={"batch_size": 9})
    rows = [task.batch_rows for task in plan.tasks if task.task.type is TaskType.WORKER]
    assert rows == [(4,), (5,), ()]


def test_more_shares_than_workers_are_refused():
    with pytest.raises(ConfigError, match=r"replicas_to_aggregate=4.* 3 workers"):
        plan_of(
            "ps", of={"update": "sync", "replicas_to_aggregate": 4}, cluster={"workers": 3, "ps": 1}
        )
