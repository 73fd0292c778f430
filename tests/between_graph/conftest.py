"""One cluster inside this process: real TensorFlow servers, three workers, two parameter servers.

A process can hold the servers of one cluster only, so these tests need one of their own:
`python -m pytest tests/between_graph`.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")

import keras
import pytest

from tests.between_graph.trainings import Trainings, client_spec
from tests.ps.trainings import start_servers


@pytest.fixture(scope="session")
def cluster():
    """Start all servers; each training has a container of its own on them."""
    spec = client_spec(num_workers=3, num_ps=2)
    yield Trainings(spec, start_servers(spec))


@pytest.fixture(autouse=True)
def _fresh_keras():
    yield
    keras.backend.clear_session()
    keras.config.set_dtype_policy("float32")
