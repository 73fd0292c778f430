"""The seed of a chaos run, and where its runs happen."""

import os

import pytest

from tests.e2e.conftest import bench, pytest_runtest_makereport  # noqa: F401


@pytest.fixture(scope="session")
def chaos_seed():
    """Return the seed: KDIST_CHAOS_SEED repeats what a failed run has printed."""
    return int(os.environ.get("KDIST_CHAOS_SEED", "20"))
