"""What is read from the environment."""

import pytest

from kdist.launch.accelerators import count_accelerators


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
