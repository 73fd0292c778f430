"""What is read from the environment, and what tasks inherit."""

import pytest

from kdist.cli.environment import count_accelerators, prepare
from kdist.errors import ConfigError


@pytest.fixture
def four_gpus(tmp_path):
    for index in range(4):
        (tmp_path / f"0000:0{index}:00.0").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "num"),
    [
        (None, 4),
        ("", 0),
        ("-1", 0),
        ("0", 1),
        ("2, 3", 2),
        ("0,9,1", 1),
        ("NoDevFiles", 0),
        ("GPU-8932f937,MIG-1", 2),
    ],
)
def test_visible_accelerators_are_counted_as_cuda_counts_them(four_gpus, visible, num):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_accelerators(environ, four_gpus) == num


def test_other_backends_are_refused():
    with pytest.raises(ConfigError, match="KERAS_BACKEND=jax"):
        prepare({"KERAS_BACKEND": "jax"}, is_verbose=False)


@pytest.mark.parametrize("is_verbose", [True, False])
def test_tasks_inherit_what_tensorflow_reads_at_its_import(is_verbose):
    environ = {"TF_USE_LEGACY_KERAS": "1"}
    prepare(environ, is_verbose=is_verbose)
    noise = {} if is_verbose else {"TF_CPP_MIN_LOG_LEVEL": "2"}
    assert environ == {"KERAS_BACKEND": "tensorflow", "GRPC_FAIL_FAST": "use_caller", **noise}
