"""The wheel carries everything that the command line needs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60


def test_the_wheel_holds_the_configuration_files(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT],
        check=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "kdist", "--info", "searchpath"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site" / "kdist" / "conf") in done.stdout
