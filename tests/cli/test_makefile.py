"""`make train` on a machine whose Python does not fit."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("target", ["train", "test"])
def test_another_python_gets_one_clear_line(target, tmp_path):
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    python = tmp_path / "old"
    python.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.1" && exit 0\nexit 1\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["make", target, f"PYTHON={python}"],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))},
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert (done.returncode, done.stdout, len(said)) == (2, "", 1)
    assert "kdist needs Python 3.11 to 3.13. Received: Python 3.9.1." in said[0]
    assert not (tmp_path / ".venv").exists()
