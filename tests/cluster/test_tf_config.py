"""TF_CONFIG: what is read from it, and one line for every fault."""

import json

import pytest

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.tf_config import decode, encode
from kdist.errors import ConfigError

PS_CLUSTER = {
    "chief": ["chief.example:2222"],
    "worker": ["w-0.my_net:2222", "10.0.0.2:2222"],
    "ps": ["[::1]:2222"],
}
WORKER_1 = {"type": "worker", "index": 1}


def environ(cluster=PS_CLUSTER, task=WORKER_1, **further):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, **further})}


def two_workers(*workers, **further):
    return {"worker": list(workers), **further}


def test_not_set_means_no_cluster():
    assert decode({}) is None


def test_reads_tasks_and_addresses():
    membership = decode(environ(environment="cloud", rpc_layer="grpc"))
    assert membership is not None
    assert membership.task == Task(TaskType.WORKER, 1)
    assert membership.spec.address(membership.task) == "10.0.0.2:2222"
    assert [str(task) for task in membership.spec.tasks()] == [
        "chief-0",
        "worker-0",
        "worker-1",
        "ps-0",
    ]


def test_what_encode_writes_decode_reads():
    membership = decode(environ())
    assert membership is not None
    assert decode({"TF_CONFIG": encode(membership.spec, membership.task)}) == membership


def test_an_evaluator_is_no_part_of_the_training_cluster():
    membership = decode(
        environ({**PS_CLUSTER, "evaluator": ["e:1"]}, {"type": "evaluator", "index": 0})
    )
    assert membership is not None
    assert membership.spec.as_dict() == PS_CLUSTER
    assert "evaluator" not in encode(membership.spec, Task(TaskType.CHIEF, 0))


def test_an_evaluator_need_not_be_listed():
    membership = decode(environ(task={"type": "evaluator", "index": 0}))
    assert membership is not None
    assert membership.task == Task(TaskType.EVALUATOR, 0)


def test_an_empty_list_of_tasks_is_no_fault():
    membership = decode(environ({**PS_CLUSTER, "evaluator": []}))
    assert membership is not None
    assert membership.spec == ClusterSpec({TaskType(k): tuple(v) for k, v in PS_CLUSTER.items()})


@pytest.mark.parametrize(
    "workers",
    [
        ("localhost:1", "127.0.0.1:2"),
        ("127.0.0.1:1", "127.0.0.2:1"),
        ("[fe80::1%eth0]:1", "[fe80::1%eth1]:1"),
        ("a_b.c-d:1", "10.0.0.1:1", "[2001:DB8::1]:1"),
    ],
)
def test_addresses_that_may_differ_are_taken_as_they_are(workers):
    membership = decode(environ(two_workers(*workers)))
    assert membership is not None
    assert membership.spec.addresses[TaskType.WORKER] == workers


FAULTS = [
    ("empty", "", "empty", "''"),
    ("blank", "  \n", "empty", "unset"),
    ("cut off", '{"cluster": {"worker": ["a:1"', "not valid JSON", '["a:1"'),
    ("single quotes", "{'cluster': {}}", "not valid JSON", "{'cluster'"),
    ("nested", "[" * 100_000, "nested too deeply", "[[["),
    ("nested cluster", '{"cluster": ' + "[" * 900 + "]" * 900 + "}", "TF_CONFIG", "[[["),
    ("a huge number", "9" * 5000, "cannot be read", "999"),
    (
        "a key twice",
        '{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}, "task": {}}',
        '"worker" stands twice',
        '["a:1"] and ["b:1"]',
    ),
    ("task twice", '{"task": 1, "task": 2}', '"task" stands twice', "1 and 2"),
    ("a list", "[1]", '"cluster" and "task"', "[1]"),
    ("an empty object", "{}", "cluster is missing", "{}"),
    ("no cluster", {"task": WORKER_1}, "cluster is missing", "worker"),
    ("misspelt cluster", {"clutser": {}, "task": WORKER_1}, "clutser", '"cluster"'),
    ("misspelt task", {"cluster": PS_CLUSTER, "tsak": WORKER_1}, "tsak", '"task"'),
    ("no task", {"cluster": PS_CLUSTER}, "task is missing", "chief.example"),
    ("task is a string", {"cluster": PS_CLUSTER, "task": "worker"}, "task must", '"worker"'),
    ("cluster is a list", {"cluster": ["a:1"], "task": WORKER_1}, "cluster must", '["a:1"]'),
    ("cluster is empty", {"cluster": {}, "task": WORKER_1}, "cluster must", "{}"),
    (
        "other rpc layer",
        {"cluster": PS_CLUSTER, "task": WORKER_1, "rpc_layer": "mpi"},
        "rpc",
        "mpi",
    ),
]
CLUSTER_FAULTS = [
    ("misspelt worker", {"wroker": ["a:1"]}, "cluster.wroker", '"worker"'),
    ("plural", {"workers": ["a:1"]}, "cluster.workers", '"worker"'),
    ("master", {"master": ["a:1"], "worker": ["b:1"]}, "cluster.master", '"chief"'),
    ("a string for a list", {"worker": "a:1"}, "cluster.worker", '"a:1"'),
    ("an object for a list", {"worker": {"0": "a:1"}}, "cluster.worker", '{"0": "a:1"}'),
    ("no port", two_workers("a:1", "b"), "cluster.worker[1]", '"b"'),
    ("port no number", two_workers("a:1", "b:x"), "cluster.worker[1]", '"b:x"'),
    ("port 0", two_workers("a:0"), "cluster.worker[0]", '"a:0"'),
    ("port of many digits", two_workers("a:" + "9" * 5000), "cluster.worker[0]", '"a:999'),
    ("port too large", two_workers("a:70000"), "cluster.worker[0]", '"a:70000"'),
    ("no host", two_workers(":2222"), "cluster.worker[0]", '":2222"'),
    ("a scheme", two_workers("grpc://a:1"), "cluster.worker[0]", "grpc://a:1"),
    ("a number", two_workers(2222), "cluster.worker[0]", "2222"),
    ("same address twice", two_workers("a:1", "a:1"), "cluster.worker[1]", "worker-0"),
    ("same address, two jobs", two_workers("a:1", ps=["a:1"]), "cluster.ps[0]", "worker-0"),
    ("other case", two_workers("Host.A:1", "host.a:01"), "cluster.worker[1]", "worker-0 (Host.A:1"),
    (
        "localhost twice",
        two_workers("127.0.0.1:1", "localhost:1"),
        "cluster.worker[1]",
        "worker-0 (127.0.0.1:1)",
    ),
    (
        "two loops",
        two_workers("[::1]:1", ps=["localhost:1"]),
        "cluster.ps[0]",
        "worker-0 ([::1]:1)",
    ),
    ("two IPv6", two_workers("[::2]:1", "[0::0:2]:1"), "cluster.worker[1]", "worker-0 ([::2]:1)"),
    ("no brackets", two_workers("::1:2222"), "in brackets", '"::1:2222"'),
    ("half a bracket", two_workers("[::1:2222"), "in brackets", '"[::1:2222"'),
    ("no IPv6", two_workers("[::g]:2222"), "in brackets", '"[::g]:2222"'),
    ("two chiefs", {"chief": ["a:1", "b:1"]}, "cluster.chief", '["a:1", "b:1"]'),
    ("nobody trains", {"ps": ["a:1"]}, "cluster", "at least one worker"),
]
TASK_FAULTS = [
    ("no type", {"index": 0}, "task.type is missing", '{"index": 0}'),
    ("no index", {"type": "worker"}, "task.index is missing", '{"type": "worker"}'),
    ("misspelt type", {"tpye": "worker", "index": 0}, "task.tpye", '"type"'),
    ("index as a string", {"type": "worker", "index": "1"}, "task.index", 'Received: "1"'),
    ("index true", {"type": "worker", "index": True}, "task.index", "true"),
    ("index a fraction", {"type": "worker", "index": 0.5}, "task.index", "0.5"),
    ("index out of range", {"type": "worker", "index": 2}, "task.index", "Received: 2"),
    ("index negative", {"type": "worker", "index": -1}, "task.index", "Received: -1"),
    ("evaluator negative", {"type": "evaluator", "index": -1}, "task.index", "Received: -1"),
    ("master", {"type": "master", "index": 0}, "task.type", '"chief"'),
    ("unknown type", {"type": "trainer", "index": 0}, "task.type", '"trainer"'),
    ("a list as type", {"type": ["worker"], "index": 0}, "task.type", '["worker"]'),
]
ALL_FAULTS = [
    *FAULTS,
    *((name, {"cluster": cluster, "task": WORKER_1}, *e) for name, cluster, *e in CLUSTER_FAULTS),
    *((name, {"cluster": PS_CLUSTER, "task": task}, *e) for name, task, *e in TASK_FAULTS),
    (
        "not in the cluster",
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}},
        "task.type",
        '"ps"',
    ),
]


@pytest.mark.parametrize(
    ("content", "key", "value"), [fault[1:] for fault in ALL_FAULTS], ids=[f[0] for f in ALL_FAULTS]
)
def test_a_fault_is_one_line_that_names_the_key_and_the_value(content, key, value):
    raw = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(ConfigError) as caught:
        decode({"TF_CONFIG": raw})
    message = str(caught.value)
    assert message.startswith("TF_CONFIG")
    assert "\n" not in message
    assert message.count("Received:") == 1
    assert key in message
    assert value in message


def test_a_long_value_is_cut():
    cluster = {"worker": [f"worker-{index}.example:2222" for index in range(500)] + ["bad"]}
    with pytest.raises(ConfigError) as caught:
        decode(environ({"worker": [], "ps": cluster["worker"][:-1]}))
    assert len(str(caught.value)) < 400
