"""What all tests share."""

import gc
import os

import pytest

from kdist.launch.accelerators import count_accelerators


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook.
def pytest_collection_modifyitems(items):
    """Skip what needs a GPU on machines that have none; start one cluster at a time."""
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.xdist_group("cluster"))
    if not count_accelerators(os.environ):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="this machine has no GPU"))


def pytest_collection_finish():
    """Spare the garbage collector what the imports have made: 0.2 s each time, often in a test."""
    gc.collect()
    gc.freeze()
