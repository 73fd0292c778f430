"""Searches as real commands; a failed test comes with all that was printed."""

import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import bench, pytest_runtest_makereport  # noqa: F401

from .searches import Search

OWN = Path(__file__).parent / "own"


@pytest.fixture
def search(bench, tmp_path):  # noqa: F811
    """Return a search in the test's folder, which holds my_trials; nothing is started yet."""
    shutil.copy(OWN / "my_trials.py", tmp_path)
    return Search(bench, tmp_path)
