"""Real commands whose processes are killed and stopped; a failed test comes with all output."""

import pytest

pytest.register_assert_rewrite("tests.faults.kit")

from tests.e2e.conftest import bench, pytest_runtest_makereport  # noqa: E402, F401

from .kit import FaultyRun, Scheduler  # noqa: E402


@pytest.fixture
def start(bench):  # noqa: F811
    """Start a run of a mode under the launcher of this machine."""

    def run(mode, *argv, epochs=60):
        return FaultyRun(bench, mode, *argv, epochs=epochs)

    return run


@pytest.fixture
def schedule(bench):  # noqa: F811
    """Start a run of a mode as a foreign scheduler does."""

    def run(mode, *argv, epochs=60):
        return Scheduler(bench, mode, *argv, epochs=epochs)

    return run
