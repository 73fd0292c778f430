"""One cluster inside this process: real TensorFlow servers, three workers, two parameter servers.

A process can connect to one cluster only, once, and its devices change with that. So these tests
need a process of their own: `python -m pytest tests/ps`.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")

import keras
import pytest

from tests.ps.trainings import Trainings, free_spec, start_servers


@pytest.fixture(scope="session")
def cluster():
    """Connect before any model is made."""
    spec = free_spec(num_workers=3, num_ps=2)
    servers = start_servers(spec)
    yield Trainings(spec)
    del servers


@pytest.fixture(autouse=True)
def _fresh_keras():
    yield
    keras.backend.clear_session()
    keras.config.set_dtype_policy("float32")
