"""Three virtual CPU devices, so that mirrored runs with two and three replicas in this process."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import pytest
import tensorflow as tf

# At import: devices must be set before any test of the session runs an operation.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3
)


@pytest.fixture(autouse=True)
def _fresh_keras():
    yield
    keras.backend.clear_session()
    keras.config.set_dtype_policy("float32")
