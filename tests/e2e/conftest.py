"""End to end: real commands, real processes. A failed test comes with all that was printed."""

import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from kdist.cli import main
from kdist.launch import forkserver

from .kit import Run, Workbench

OWN = Path(__file__).parent / "own"


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


@pytest.fixture(scope="module")
def _own_forkserver():
    forkserver.end()
    kept = dict(os.environ)
    os.environ.pop("TF_CONFIG", None)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    yield
    forkserver.end()
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture
def kdist(_own_forkserver, tmp_path, monkeypatch, capfd):
    """Run a command in a folder that holds my_pkg; return exit code, stdout and stderr.

    All runs share one launcher process and its warm fork server: each costs a second or two.
    """
    shutil.copy(OWN / "my_pkg.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    np.savez("unequal.npz", x=np.zeros((5, 2)), y=np.zeros(4))
    np.savez("flat.npz", x=np.zeros(()), y=np.zeros(4))
    np.savez("texts.npz", x=np.array(["a", "b"]), y=np.zeros(2))
    Path("empty.npz").touch()
    Path("file").touch()

    def run(*argv):
        code = main([str(entry) for entry in argv])
        assert multiprocessing.active_children() == []
        return code, *capfd.readouterr()

    return run


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
