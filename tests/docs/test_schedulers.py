"""The examples for schedulers: who gets which role, and what is started again."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kdist.cluster.tf_config import decode

PAGE = (Path(__file__).parents[2] / "docs/clusters.md").read_text(encoding="utf-8")
HOSTS = ("n1", "n2", "n3", "n4")
# Plays the tools: srun starts a task a node and returns the highest exit code.
TOOLS = {
    "scontrol": 'test "$*" = "show hostnames n[1-4]" && printf "n1\\nn2\\nn3\\nn4\\n"',
    "srun": """
        shift
        highest=0
        for number in 0 1 2 3; do
            SLURM_PROCID=$number "$@"
            code=$?
            test $code -gt $highest && highest=$code
        done
        exit $highest
    """,
    "python": """
        if test "$1" != -m; then exec REAL_PYTHON "$@"; fi
        echo "$TF_CONFIG $*" >> started
        code=$(head -n 1 codes)
        sed -i 1d codes
        exit $code
    """,
}


def block(language, beginning):
    """Return the page's fenced block of a language that begins so."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    [wanted] = [text for text in found if text.startswith(beginning)]
    return wanted


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tf_config.py").write_text(block("python", "# tf_config.py"))
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in TOOLS.items():
        (tools / name).write_text(f"#!/bin/bash\n{text.replace('REAL_PYTHON', sys.executable)}")
        (tools / name).chmod(0o755)
    return tmp_path


def bash(folder, script, **environ):
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env={"PATH": path, **environ}, timeout=60
    ).returncode


def started(folder):
    """Return the task that each started process became, and its command line."""
    lines = (folder / "started").read_text().splitlines()
    splits = [re.fullmatch(r"(\{.*\}) (.*)", line).groups() for line in lines]
    return [(str(decode({"TF_CONFIG": config}).task), command) for config, command in splits]


ROLES = ["chief-0", "ps-0", "worker-0", "worker-1"]


@pytest.mark.parametrize(
    ("codes", "exit_code"),
    [
        ([[0, 0, 0, 0]], 0),
        ([[75, 75, 75, 137], [0, 0, 0, 0]], 0),
        ([[75, 75, 75, 75]] * 4, 75),
        ([[2, 0, 0, 0]], 2),
        ([[143, 143, 143, 143]], 143),
    ],
)
def test_slurm_starts_again_what_asks_for_it(folder, codes, exit_code):
    (folder / "codes").write_text("".join(f"{code}\n" for each in codes for code in each))
    script = block("sh", "#!/bin/bash\n#SBATCH")
    assert bash(folder, script, SLURM_JOB_NODELIST="n[1-4]") == exit_code
    command = "-m kdist +strategy=ps hydra.run.dir=/shared/my-run"
    assert started(folder) == [(task, command) for task in ROLES] * len(codes)


def test_workers_alone_have_no_chief_of_their_own(folder):
    told = subprocess.run(
        [sys.executable, "tf_config.py", "0", "1", *HOSTS],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(told.stdout) == {
        "cluster": {"worker": ["n1:23450", "n2:23451", "n3:23452", "n4:23453"]},
        "task": {"type": "worker", "index": 1},
    }


def test_the_manifest_deals_the_roles_and_starts_again_what_asks_for_it(folder):
    service, job = yaml.safe_load_all(block("yaml", "apiVersion"))
    spec = job["spec"]
    pod = spec["template"]["spec"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert (spec["completionMode"], pod["restartPolicy"]) == ("Indexed", "Never")
    [rule] = spec["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [1, 2, 130, 143])
    (folder / "codes").write_text("0\n" * spec["completions"])
    [container] = pod["containers"]
    for number in range(spec["completions"]):
        assert container["command"] == ["bash", "-c"]
        assert bash(folder, *container["args"], JOB_COMPLETION_INDEX=str(number)) == 0
    command = "-m kdist +strategy=ps hydra.run.dir=/results/my-run"
    assert started(folder) == [(task, command) for task in ROLES]
    first = (folder / "started").read_text().splitlines()[0]
    assert '"chief": ["my-run-0.my-run:23450"], "ps": ["my-run-1.my-run:23451"]' in first
