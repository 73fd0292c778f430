"""Devices are set before anything else; TensorFlow is a fake that remembers what it was told."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import traits_of
from kdist.distribute import runtime, strategies
from kdist.errors import EnvironmentFault


@pytest.fixture
def told(monkeypatch):
    """A machine of two GPUs and one CPU, and what its TensorFlow was told, in order."""
    calls = []

    def remember(name):
        return lambda *args: calls.append((name, *args))

    config = SimpleNamespace(
        list_physical_devices=lambda kind: {"GPU": ["gpu0", "gpu1"], "CPU": ["cpu0"]}[kind],
        set_visible_devices=remember("visible"),
        set_logical_device_configuration=remember("split"),
        LogicalDeviceConfiguration=lambda: "part",
        experimental=SimpleNamespace(
            set_memory_growth=remember("growth"),
            enable_op_determinism=remember("deterministic"),
        ),
    )
    monkeypatch.setattr(runtime, "tf", SimpleNamespace(config=config))
    fake_keras = SimpleNamespace(utils=SimpleNamespace(set_random_seed=remember("seed")))
    monkeypatch.setattr(runtime, "keras", fake_keras)
    return calls


def configure(**changes):
    given = {"num_devices": 1, "accelerators": (), "seed": 7, "deterministic": False}
    runtime.configure(**(given | changes))


def test_a_task_sees_its_accelerators_only_and_their_memory_grows(told):
    configure(num_devices=1, accelerators=(1,))
    assert told == [("visible", ["gpu1"], "GPU"), ("growth", "gpu1", True), ("seed", 7)]


def test_a_task_without_accelerators_hides_them_all(told):
    configure()
    assert told == [("visible", [], "GPU"), ("seed", 7)]


def test_without_accelerators_the_cpu_is_split(told):
    configure(num_devices=2)
    assert ("split", "cpu0", ["part", "part"]) in told


def test_determinism_is_asked_for(told):
    configure(deterministic=True)
    assert told[-1] == ("deterministic",)


def test_an_accelerator_that_tensorflow_does_not_see_is_named(told):
    with pytest.raises(EnvironmentFault, match=r"does not see accelerator 2\. Received: 2 of them"):
        configure(num_devices=3, accelerators=(0, 1, 2))
    assert told == []


@pytest.mark.parametrize("collective", ["auto", "ring", "nccl"])
def test_workers_add_up_as_configured(collective, monkeypatch):
    made = []
    monkeypatch.setattr(
        tf.distribute,
        "MultiWorkerMirroredStrategy",
        lambda resolver, options: made.append((resolver, options)),
    )
    spec = ClusterSpec({TaskType.WORKER: ("127.0.0.1:1", "127.0.0.1:2")})
    strategies.make_strategy(
        traits_of("multiworker"),
        spec,
        Task(TaskType.WORKER, 1),
        num_devices=1,
        collective=collective,
    )
    [(resolver, options)] = made
    assert options.implementation.name == collective.upper()
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.cluster_spec().as_dict() == {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}


class Ends:
    """Raises when it is deleted."""

    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error


@pytest.mark.parametrize(
    ("error", "is_said"),
    [(tf.errors.UnavailableError(None, None, "ps-1 is lost"), False), (ValueError("wrong"), True)],
    ids=["of TensorFlow", "another"],
)
def test_a_lost_task_is_not_met_again_at_the_end(monkeypatch, error, is_said):
    said = []
    monkeypatch.setattr("sys.unraisablehook", None)
    monkeypatch.setattr("sys.__unraisablehook__", said.append)
    runtime.hide_errors_of_deletion()
    ends = Ends(error)
    del ends
    assert bool(said) is is_said
