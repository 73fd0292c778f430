"""One cluster inside this process: real TensorFlow servers, three workers, two parameter servers.

A process can connect to one cluster only, once, and its devices change with that. So these tests
need a process without other suites: `python -m pytest tests/ps tests/between_graph`.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")

import keras
import pytest

from tests.ps.trainings import own_cluster


@pytest.fixture(scope="session")
def cluster():
    """Return trainings on the cluster of this process, connected before any model is made."""
    return own_cluster().trainings


@pytest.fixture(autouse=True)
def _fresh_keras():
    yield
    keras.backend.clear_session()
    keras.config.set_dtype_policy("float32")
