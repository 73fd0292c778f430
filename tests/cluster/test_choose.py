"""The choice of a strategy, and which clusters each one accepts."""

import pytest

from kdist.cluster.choose import check_cluster_fits, choose_strategy
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.tf_config import Membership
from kdist.cluster.traits import STRATEGY_NAMES, traits_of
from kdist.errors import ConfigError


def membership(task_type=TaskType.WORKER, **nums):
    addresses = {
        TaskType(kind): tuple(f"{kind}{index}:2222" for index in range(num))
        for kind, num in nums.items()
    }
    return Membership(ClusterSpec(addresses), Task(task_type, 0))


@pytest.mark.parametrize(
    ("configured", "cluster", "num_accelerators", "name", "reason"),
    [
        ("ps", None, 8, "ps", "configured"),
        (None, membership(chief=1, worker=2, ps=1), 0, "ps", "1 chief, 2 worker, 1 ps"),
        (None, membership(worker=2), 8, "multiworker", "2 worker"),
        (None, membership(chief=1, worker=1), 0, "multiworker", "1 chief, 1 worker"),
        (None, membership(worker=1), 4, "mirrored", "4 accelerators"),
        (None, membership(worker=1), 0, "single", "no other task"),
        (None, None, 2, "mirrored", "2 accelerators"),
        (None, None, 1, "single", "one accelerator"),
        (None, None, 0, "single", "no accelerator"),
    ],
)
def test_choice(configured, cluster, num_accelerators, name, reason):
    choice = choose_strategy(configured, cluster, num_accelerators)
    assert choice.name == name
    assert reason in choice.line


@pytest.mark.parametrize(
    ("name", "cluster", "fault"),
    [
        ("single", membership(worker=1), None),
        ("mirrored", membership(TaskType.CHIEF, chief=1), None),
        ("multiworker", membership(worker=2), None),
        ("multiworker", membership(chief=1, worker=1), None),
        ("multiworker", membership(chief=1), None),
        ("multiworker", membership(worker=2, evaluator=1), None),
        ("ps", membership(chief=1, worker=1, ps=1), None),
        ("single", membership(worker=2), "several tasks"),
        ("mirrored", membership(chief=1, worker=1), "several tasks"),
        ("multiworker", membership(worker=2, ps=1), "cluster.ps"),
        ("ps", membership(chief=1, worker=2), "no cluster.ps"),
        ("ps", membership(worker=2, ps=1), "no cluster.chief"),
        ("ps", membership(chief=1, ps=1), "cluster.worker"),
        ("ps", membership(TaskType.EVALUATOR, chief=1, worker=1, ps=1), "evaluator"),
    ],
)
def test_which_clusters_fit(name, cluster, fault):
    if fault is None:
        check_cluster_fits(traits_of(name), cluster)
        return
    with pytest.raises(ConfigError) as caught:
        check_cluster_fits(traits_of(name), cluster)
    assert "TF_CONFIG" in str(caught.value)
    assert fault in str(caught.value)


@pytest.mark.parametrize("update", ["async", "sync"])
def test_between_graph_needs_no_chief(update):
    traits = traits_of("ps", "between_graph", update)
    check_cluster_fits(traits, membership(worker=2, ps=1))
    check_cluster_fits(traits, membership(chief=1, worker=1, ps=1))
    with pytest.raises(ConfigError, match=r"cluster\.ps"):
        check_cluster_fits(traits, membership(worker=2))


def test_every_strategy_has_traits():
    assert STRATEGY_NAMES == ("single", "mirrored", "multiworker", "ps")
    for name in STRATEGY_NAMES:
        traits = traits_of(name)
        assert traits_of(name, traits.replication, traits.update) is traits
        assert not traits.trains_on & traits.hosts


@pytest.mark.parametrize(
    ("mode", "fault"),
    [
        (("tpu",), "strategy.name"),
        (("ps", "towers"), "strategy.replication"),
        (("ps", None, "later"), "strategy.update"),
        (("ps", "none", "sync"), "not available yet"),
        (("mirrored", None, "async"), "not available yet"),
    ],
)
def test_modes_that_do_not_exist_are_refused(mode, fault):
    with pytest.raises(ConfigError, match=fault):
        traits_of(*mode)
