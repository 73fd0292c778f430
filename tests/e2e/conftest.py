"""End to end: real commands, real processes. A failed test comes with all that was printed."""

import pytest

from .kit import Run, Workbench


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A workbench for runs that several tests look at."""
    bench = Workbench(tmp_path_factory.mktemp("shared"))
    yield bench
    bench.end_all()


@pytest.fixture
def bench(tmp_path):
    """A workbench for one test."""
    made = Workbench(tmp_path)
    yield made
    made.end_all()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if not report.failed:
        return
    for name, value in getattr(item, "funcargs", {}).items():
        values = value if isinstance(value, (list, tuple)) else [value]
        for each in values:
            if isinstance(each, Run | Workbench) or hasattr(each, "evidence"):
                report.sections.append((f"evidence of {name}", each.evidence()))
                folders = getattr(each, "folder", None)
                for found in sorted(folders.rglob("logs")) if folders else ():
                    report.sections.append((str(found), Run(found.parent).evidence()))
