"""One task of a peer: plain `fit`, timed epoch by epoch. A program, in a process of its own.

python -m benchmarks.peer tf_keras mirrored dense --steps 400 --batch-size 128
"""

import argparse
import importlib
import json
import os
import sys
import time
from typing import Any

from benchmarks.cases import STRATEGIES
from benchmarks.workloads import WORKLOADS, compiled

MARK = "benchmark-result "


def main() -> None:
    """Train as the arguments say; the task that drives training prints the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=("keras", "tf_keras"))
    parser.add_argument("strategy", choices=STRATEGIES)
    parser.add_argument("workload")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--steps-per-execution", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--save", help="save the model here after training")
    arguments = parser.parse_args()
    if arguments.library == "tf_keras":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    train(arguments)


def train(arguments: argparse.Namespace) -> None:
    """Train one warm-up epoch and the timed ones, and print their seconds."""
    import tensorflow as tf

    keras: Any = importlib.import_module(arguments.library)
    strategy, is_driver = make_strategy(tf, arguments)
    with strategy.scope():
        model = compiled(
            keras, arguments.workload, steps_per_execution=arguments.steps_per_execution
        )
    arrays = WORKLOADS[arguments.workload].make_arrays()
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    dataset = dataset.shuffle(len(arrays[0]), seed=1).repeat().batch(arguments.batch_size)
    if arguments.strategy != "ps":
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
    seconds: list[float] = []

    class EpochClock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.began_s = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seconds.append(time.perf_counter() - self.began_s)

    history = model.fit(
        dataset,
        epochs=arguments.epochs,
        steps_per_epoch=arguments.steps,
        verbose=0,
        callbacks=[EpochClock()],
    )
    if arguments.save:
        model.save(arguments.save)
    if is_driver:
        result = {"seconds": seconds, "loss": history.history["loss"]}
        print(MARK + json.dumps(result), flush=True)
    # TensorFlow's servers and collectives need no orderly end here, and may hang in one.
    sys.stdout.flush()
    os._exit(0)


def make_strategy(tf: Any, arguments: argparse.Namespace) -> tuple[Any, bool]:
    """Return the strategy and whether this task reports; a server task never returns."""
    if arguments.strategy == "single":
        return tf.distribute.get_strategy(), True
    if arguments.strategy == "mirrored":
        device = tf.config.list_physical_devices("CPU")[0]
        virtual = [tf.config.LogicalDeviceConfiguration()] * arguments.devices
        tf.config.set_logical_device_configuration(device, virtual)
        names = [f"CPU:{index}" for index in range(arguments.devices)]
        return tf.distribute.MirroredStrategy(names), True
    if arguments.strategy == "multiworker":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        return strategy, strategy.cluster_resolver.task_id == 0
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        )
        server.join()
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        256 << 10, max_shards=2
    )
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner), True


if __name__ == "__main__":
    main()
