"""What tests of the command line share."""

import pytest

from kdist.cli import main
from kdist.cli.sweep import job_run

from .sweep_jobs import SMALL, Jobs


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """Play all jobs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    played = Jobs()
    monkeypatch.setattr(job_run, "run_tasks", played.run_tasks)
    return played


@pytest.fixture
def sweep(jobs, capfd):
    """Run a sweep in the folder `swept`; return exit code, stdout and stderr."""

    def run(*argv, folder="swept"):
        where = () if folder is None else (f"hydra.sweep.dir={folder}",)
        code = main(["-m", *SMALL, *where, *map(str, argv)])
        return code, *capfd.readouterr()

    return run
