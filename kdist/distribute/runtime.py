"""TensorFlow's process-wide settings, made once, before any operation runs."""

import sys
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from kdist.errors import EnvironmentFault


def configure(
    *,
    num_devices: int,
    accelerators: Sequence[int],
    seed: int,
    deterministic: bool,
) -> None:
    """Set devices, seeds and determinism of this process.

    Args:
        num_devices: Devices that its replicas run on. Without accelerators the CPU is split into
            as many virtual ones.
        accelerators: Indices of the accelerators that this task may use; the others are hidden,
            and memory growth is set on these. Empty hides all of them.
        seed: Seed of Python, NumPy and TensorFlow.
        deterministic: Whether TensorFlow must use deterministic kernels.

    Raises:
        EnvironmentFault: If an accelerator is missing.
    """
    found = tf.config.list_physical_devices("GPU")
    missing = [index for index in accelerators if index >= len(found)]
    if missing:
        raise EnvironmentFault(
            f"TensorFlow does not see accelerator {missing[0]}. Received: {len(found)} of them. "
            "Check the driver, or install kdist[cuda]."
        )
    visible = [found[index] for index in accelerators]
    if found:
        tf.config.set_visible_devices(visible, "GPU")
    for device in visible:
        tf.config.experimental.set_memory_growth(device, True)
    if not visible and num_devices > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * num_devices,
        )
    keras.utils.set_random_seed(seed)
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def hide_errors_of_deletion() -> None:
    """Let Python say nothing of errors that TensorFlow's objects meet when they are deleted.

    Executors of a lost task meet its loss once more, after it was reported.
    """

    def hook(found: Any) -> None:
        if not isinstance(found.exc_value, tf.errors.OpError):
            sys.__unraisablehook__(found)

    sys.unraisablehook = hook
