"""Three virtual CPU devices, so that mirrored runs with two and three replicas in this process."""

import keras
import pytest
import tensorflow as tf

# At import: devices must be set before any test of the session runs an operation.
tf.config.set_visible_devices([], "GPU")
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3
)


@pytest.fixture(autouse=True)
def _fresh_keras():
    yield
    keras.backend.clear_session()
    keras.config.set_dtype_policy("float32")
