"""A model whose steps take long without using a processor: as many workers as memory takes fit."""

from typing import Any

import keras
import tensorflow as tf

from benchmarks.workloads import compiled

# What Linux shows each process of itself; its first word is the process id.
_SELF = "/proc/self/stat"


@keras.saving.register_keras_serializable("benchmarks")
class Sleep(keras.layers.Layer):
    """Passes its input on after a while; in the process that `slow_file` names, after longer."""

    def __init__(
        self, seconds: float, slow_seconds: float = 0.0, slow_file: str = "", **options: Any
    ):
        """Assign.

        Args:
            seconds: How long to sleep.
            slow_seconds: How long to sleep in the slow process.
            slow_file: A file that holds the id of the slow process, or nothing; "" for none.
            **options: Of the layer.
        """
        super().__init__(**options)
        self.seconds = seconds
        self.slow_seconds = slow_seconds
        self.slow_file = slow_file

    def call(self, inputs: Any) -> Any:
        """Return the inputs."""
        if isinstance(inputs, keras.KerasTensor):
            return inputs
        first = tf.reshape(inputs, [-1])[:1]
        asleep = tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(first))
        slept = tf.raw_ops.SleepDataset(
            input_dataset=asleep,
            sleep_microseconds=tf.cast(self._seconds(first) * 1e6, tf.int64),
            output_types=[first.dtype],
            output_shapes=[first.shape],
        )
        spec = tf.TensorSpec(first.shape, first.dtype)
        # Whoever wants a single element asks for a second one, which would sleep as well.
        only = tf.data.experimental.from_variant(slept, spec).take(1)
        done: Any = only.get_single_element()
        with tf.control_dependencies([done]):
            return tf.identity(inputs)

    def _seconds(self, first: Any) -> Any:
        if not self.slow_file:
            return tf.constant(self.seconds)
        # Paths that are constants would be read once, when TensorFlow optimizes the graph.
        nothing = tf.strings.substr(tf.strings.as_string(first[0]), 0, 0)
        lines = tf.data.TextLineDataset(tf.strings.join([_SELF, nothing]))
        process_id = tf.strings.split(lines.get_single_element(), " ")[0]
        slow_id = tf.io.read_file(tf.strings.join([self.slow_file, nothing]))
        return tf.where(tf.equal(process_id, slow_id), self.slow_seconds, self.seconds)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        own = {"seconds": self.seconds, "slow_seconds": self.slow_seconds}
        return {**super().get_config(), **own, "slow_file": self.slow_file}


def build_model(seconds: float, slow_seconds: float = 0.0, slow_file: str = "") -> keras.Model:
    """Return the dense workload's model with a layer that sleeps behind its first layer.

    It sleeps once it has parameters: steps of one worker cannot sleep side by side.
    """
    dense = compiled(keras, "dense")
    first, *others = dense.layers
    layers = [keras.Input((64,)), first, Sleep(seconds, slow_seconds, slow_file), *others]
    model = keras.Sequential(layers)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
