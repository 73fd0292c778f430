"""What all tests share."""

import os

import pytest

from kdist.launch.accelerators import count_accelerators


def pytest_collection_modifyitems(items):
    """Skip what needs a GPU on machines that have none."""
    if not count_accelerators(os.environ):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="this machine has no GPU"))
