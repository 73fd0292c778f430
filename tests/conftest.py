"""What all tests share."""

import gc
import os

import pytest

from kdist.launch.accelerators import count_accelerators

# Tests that start no cluster, and listen on ports or count processes all the same.
_ALONE = ("control", "launch")
# Tests of many small runs on one device, which stand a cluster beside them.
_SEARCHES = ("test_searches.py", "test_sweeps.py")


def pytest_itemcollected(item):
    """Start one cluster at a time; pytest-xdist reads the groups when all tests are collected.

    Searches and sweeps are a group of their own, or one process would wait for the other's.
    """
    if item.get_closest_marker("cluster") or item.path.parent.name in _ALONE:
        group = "searches" if item.path.name in _SEARCHES else "cluster"
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_modifyitems(items):
    """Skip what needs a GPU on machines that have none."""
    if not count_accelerators(os.environ):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="this machine has no GPU"))


def pytest_collection_finish():
    """Spare the garbage collector what the imports have made: 0.2 s each time, often in a test."""
    gc.collect()
    gc.freeze()
