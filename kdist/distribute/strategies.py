"""The one place that makes `tf.distribute` strategies and servers."""

import os
from collections.abc import Sequence

import tensorflow as tf

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.cluster.traits import StrategyTraits
from kdist.errors import ConfigError, EnvironmentFault

_IMPLEMENTATIONS = {
    "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
}


def make_strategy(
    traits: StrategyTraits, spec: ClusterSpec, task: Task, *, num_devices: int, collective: str
) -> tf.distribute.Strategy:
    """Return the strategy that a training task uses; call it before any other operation.

    With several workers it returns when all of them have called it; with parameter servers when
    their TensorFlow servers answer.

    Args:
        traits: Of the mode.
        spec: The cluster.
        task: This task.
        num_devices: Replicas in this process.
        collective: auto, ring or nccl.

    Raises:
        ConfigError: If the devices do not suit the strategy.
    """
    if traits.needs_coordinator:
        return tf.distribute.ParameterServerStrategy(_resolver(spec, task))
    if traits.has_followers:  # Each of them is a client of the servers by itself.
        return tf.distribute.get_strategy()
    if spec.is_distributed:
        if num_devices > 1 and not tf.config.list_physical_devices("GPU"):
            raise ConfigError(
                "On CPUs a worker has one replica. Received: strategy.devices="
                f"{num_devices}. Use more workers (cluster.workers) instead."
            )
        return tf.distribute.MultiWorkerMirroredStrategy(
            _resolver(spec, task),
            tf.distribute.experimental.CommunicationOptions(
                implementation=_IMPLEMENTATIONS[collective]
            ),
        )
    if num_devices == 1:
        return tf.distribute.get_strategy()
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    operations = tf.distribute.NcclAllReduce() if collective == "nccl" else None
    return tf.distribute.MirroredStrategy(
        [f"{kind}:{index}" for index in range(num_devices)], cross_device_ops=operations
    )


def start_server(
    spec: ClusterSpec,
    task: Task,
    *,
    accelerators: Sequence[int] | None = None,
    serves_calls: bool = True,
) -> tf.distribute.Server:
    """Start the TensorFlow server of a task.

    It listens on every interface and asks nobody who they are.

    Args:
        spec: The cluster.
        task: This task.
        accelerators: Those that it computes on; `None` leaves it all that the process sees.
        serves_calls: Whether a coordinator calls functions here, or a user's program may do
            anything; if not, it serves the sessions of kdist's workers only.

    Raises:
        EnvironmentFault: If the port is taken.
    """
    num_threads = _num_threads(spec.num(TaskType.WORKER), serves_calls=serves_calls)
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=num_threads)
    if accelerators is not None:
        config.gpu_options.allow_growth = True
        config.gpu_options.visible_device_list = ",".join(map(str, accelerators))
        if not accelerators:
            config.device_count["GPU"] = 0
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(spec.as_dict()),
            job_name=str(task.type),
            task_index=task.index,
            protocol="grpc",
            config=config,
        )
    except tf.errors.OpError as error:
        raise EnvironmentFault(
            f"{task} cannot serve on {spec.address(task)}: {error.message}"
        ) from error


def _num_threads(num_workers: int, *, serves_calls: bool) -> int:
    """Return the threads of a server that run operations.

    A call holds a thread until it is done. With TensorFlow's one for each core, calls on a machine
    of one core wait for each other for ever, so there are some for every worker. The steps of
    sessions hold none while they wait, and every idle thread costs: each operation wakes one
    (measured on two cores, 16 workers: 2.0 ms of processor time a step with 36 threads, 1.3 ms
    with 2).
    """
    num_cores = os.cpu_count() or 1
    return max(num_cores, 4 + 2 * num_workers) if serves_calls else max(num_cores, 2)


def _resolver(spec: ClusterSpec, task: Task) -> tf.distribute.cluster_resolver.ClusterResolver:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec.as_dict()),
        task_type=str(task.type),
        task_id=task.index,
        rpc_layer="grpc",
    )
