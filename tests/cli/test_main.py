"""The command line as a process: what it prints, its exit code, and what it leaves alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("tensorflow", "keras", "keras_tuner", "numpy", "matplotlib", "sklearn", "rich")
PROGRAM = """
import json, sys
from kdist.cli import main
exit_code = main(sys.argv[1:])
loaded = sorted({name.split(".")[0] for name in sys.modules})
print("\\n" + json.dumps({"exit_code": exit_code, "modules": loaded}))
"""
DEADLINE_S = 30


def start(argv, folder, program=("-m", "kdist"), **environ):
    clean = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    return subprocess.run(
        [sys.executable, *program, *argv],
        cwd=folder,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize(
    ("argv", "exit_code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["--cfg", "job"], 0),
        (["command=plan", "+strategy=ps"], 0),
        (["-m", "command=plan", "+strategy=ps,single", "epochs=1,2"], 0),
        (["-m", "command=plan", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=1,2"], 0),
        (["-m", "epochs=1,0"], 2),
        (["epochz=3"], 2),
        (["epochs=0"], 2),
        (["data.batch_size=99999999999999999999"], 2),
        (["model=nothing"], 2),
        (["--no-such-flag"], 2),
    ],
)
def test_what_trains_nothing_imports_nothing_heavy_and_makes_nothing(argv, exit_code, tmp_path):
    done = start(argv, tmp_path, ("-c", PROGRAM))
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["exit_code"] == exit_code
    assert not set(found["modules"]) & set(HEAVY)
    assert list(tmp_path.iterdir()) == []


def test_help_needs_no_hydra(tmp_path):
    done = start(["--help"], tmp_path, ("-c", PROGRAM))
    assert not {"hydra", "omegaconf"} & set(json.loads(done.stdout.splitlines()[-1])["modules"])
    assert done.stdout.count("python -m kdist") == 10
    assert "strategy    mirrored, multiworker, ps, single" in done.stdout


@pytest.mark.parametrize("argv", [["epochs=0"], ["--cfg", "job", "epochz=1"], ["-m", "model=x"]])
def test_a_refusal_is_one_line_on_stderr(argv, tmp_path):
    done = start(argv, tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("argv", [[], ["-m", "seed=1,2"], ["--cfg", "job"]])
def test_a_current_folder_that_is_gone_is_one_line(argv, tmp_path):
    shell = 'rmdir "$PWD" && exec "$0" -m kdist "$@"'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable, *argv],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Error: The current folder cannot be read")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path) in done.stderr


def test_debug_shows_the_traceback(tmp_path):
    done = start(["epochs=0", "debug=true"], tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("tf_config", "argv", "said"),
    [
        ("{", [], "TF_CONFIG is not valid JSON"),
        ('{"cluster": {"worker": ["a:1"]}}', [], "task is missing"),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}',
            ["+strategy=ps"],
            "no cluster.ps",
        ),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}',
            ["seed=null"],
            "seed=null",
        ),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
            ["-m", "seed=1,2"],
            "TF_CONFIG",
        ),
    ],
)
def test_a_cluster_that_cannot_work_is_refused_before_tensorflow(tf_config, argv, said, tmp_path):
    done = start(argv, tmp_path, ("-c", PROGRAM), TF_CONFIG=tf_config)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["exit_code"] == 2
    assert not set(found["modules"]) & set(HEAVY)
    assert said in done.stderr


def test_another_backend_is_refused_in_one_line(tmp_path):
    done = start([], tmp_path, KERAS_BACKEND="torch")
    assert done.returncode == 2
    assert "KERAS_BACKEND=torch" in done.stderr


def test_a_sweep_goes_on_when_nobody_reads_what_it_says(tmp_path):
    argv = ["-m", "command=plan", "strategy=single,ps"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kdist", *argv],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 0
    assert process.stderr.read() == b""


def test_a_sweep_whose_jobs_all_end_well_ends_well(tmp_path):
    done = start(["-m", "command=plan", "strategy=single,mirrored"], tmp_path)
    assert done.returncode == 0, done.stderr


def test_importing_kdist_imports_nothing_heavy(tmp_path):
    program = "import kdist, sys, json; print(json.dumps(sorted(sys.modules)))"
    done = start([], tmp_path, ("-c", program))
    assert not {"hydra", "omegaconf", *HEAVY} & set(json.loads(done.stdout))


def test_the_package_runs_from_a_checkout_and_knows_its_files():
    from kdist.cli.groups import conf_folder

    assert (Path(conf_folder()) / "kdist.yaml").is_file()


def shell(text, folder, **environ):
    return subprocess.run(
        ["bash", "-c", text, sys.executable],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize("argv", ["--help", "--version", "--cfg job", "--info all", "command=plan"])
def test_an_answer_that_nobody_reads_or_that_finds_no_room_is_no_traceback(argv, tmp_path):
    unread = shell(f'"$0" -m kdist {argv} | true; exit ${{PIPESTATUS[0]}}', tmp_path)
    assert (unread.returncode, unread.stderr) == (0, "")
    full = shell(f'exec "$0" -m kdist {argv} >/dev/full', tmp_path)
    assert full.returncode == 2
    assert full.stderr.startswith("Error: The answer could not be written to stdout.")
    assert full.stderr.count("\n") == 1


def test_a_refusal_keeps_its_exit_code_where_stderr_takes_nothing(tmp_path):
    for target in ("/dev/full", "&-"):
        assert shell(f'exec "$0" -m kdist epochs=0 2>{target}', tmp_path).returncode == 2


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_sent_nowhere(closed, tmp_path):
    program = (
        "import os, subprocess, sys; from kdist.launch.standard_streams import open_closed_streams;"
        "open_closed_streams(); print('a'); print('b', file=sys.stderr);"
        "assert os.open('f', os.O_CREAT) > 2;"
        "child = 'import os; [os.fstat(number) for number in range(3)]';"
        "sys.exit(subprocess.call([sys.executable, '-c', child]))"
    )
    assert shell(f'exec "$0" -c "{program}" {closed}', tmp_path).returncode == 0
    assert shell(f'exec "$0" -m kdist command=plan {closed}', tmp_path).returncode == 0
