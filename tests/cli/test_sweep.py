"""What a sweep starts, in which order, and what it tells; jobs are played."""

import multiprocessing.connection
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from kdist.cli import main
from kdist.cli.sweep import sweep as sweep_module
from kdist.launch.local import LocalRun
from kdist.records.sweep_folder import SweepFolder

from .sweep_jobs import SMALL, ended, rows, saved

RATES = "optimizer.learning_rate=0.4,0.1,0.2"


def test_every_job_is_asked_for_what_a_run_of_its_own_is(jobs, sweep, monkeypatch):
    alone = []
    monkeypatch.setattr("kdist.launch.local.run_local", lambda found: alone.append(found) or 0)
    assert sweep("strategy=single,ps", "seed=1,2", "++model.units=16")[0] == 0
    for strategy in ("single", "ps"):
        for seed in (1, 2):
            argv = [*SMALL, f"strategy={strategy}", f"seed={seed}", "++model.units=16"]
            assert main([*argv, f"hydra.run.dir=alone/{strategy}{seed}"]) == 0
    for swept, own in zip(jobs.requests, alone, strict=True):
        assert [each.config for each in swept] == [each.config for each in own]
        assert [each.config_yaml for each in swept] == [each.config_yaml for each in own]
        assert [each.typed_keys for each in swept] == [each.typed_keys for each in own]
        assert [each.num_devices for each in swept] == [each.num_devices for each in own]
    folders = [Path(each[0].run_dir).relative_to(Path.cwd()) for each in jobs.requests]
    assert folders == [Path(f"swept/{number}") for number in range(4)]
    assert not any(each[0].may_rename_run_dir for each in jobs.requests)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["epochs=1,0"], "Job 1, epochs=0, cannot run: epochs must be at least 1."),
        (["epochs=0,-1,1"], "(2 of 3 jobs cannot run.)"),
        (["model=mlp,nothing"], "model has no option nothing"),
        (["epochz=1,2"], "The configuration has no key epochz. Did you mean epochs?"),
        (["cluster.workers=2,0", "strategy=ps"], "needs at least 1: cluster.workers=0"),
        (["optimizer.learning_rate=interval(0,1)"], "needs a list of values"),
        (["hydra/launcher=nothing"], "hydra/launcher has no option nothing"),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=0"], "n_jobs must be at least 1"),
        (["hydra.sweep.subdir=same", "seed=1,2"], "Each job needs a folder of its own"),
        (["sweep.devices_per_job=0"], "sweep.devices_per_job must be at least 1"),
        (["+tuner=random", "seed=1,2"], "A search makes its own runs"),
        (["sweep.fail_fast=3"], "sweep.fail_fast must be true or false"),
        (["model=glob(z*)"], "model has no option that the glob matches. Received: model=glob(z*)"),
        (["seed=glob(*)"], "glob(...) stands for options of a group, and seed is none."),
        (["seed=range(0,3,0)"], "seed has a range whose step is 0: it never ends. Received: seed="),
        (["seed=range(0.0,3,0)"], "seed has a range whose step is 0"),
        (["seed=range(1,1)", "epochs=1,2"], "seed has no values, so there is nothing to run."),
        (["seed=range(0,1,nan)"], "Received: seed=range(0,1,nan)"),
        (["seed=range(0,10000000)"], "Received: more than 10,000, by seed=range(0,10000000)."),
        (["seed=shuffle(range(0,inf))"], "A sweep has at most 10,000 jobs."),
        (["seed=range(0,200)", "epochs=range(1,101)"], "Received: 20,000, by epochs=range(1,101)"),
        (["seed=1,2", f"hydra.sweep.subdir={'z' * 256}"], "hydra.sweep.dir names a place that"),
    ],
)
def test_what_cannot_run_is_refused_before_the_first_job(jobs, sweep, tmp_path, argv, said):
    code, stdout, stderr = sweep(*argv)
    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert said in stderr
    assert jobs.requests == []
    assert list(tmp_path.iterdir()) == []


def test_a_glob_stands_for_the_options_of_a_group(jobs, sweep):
    assert sweep("model=glob(*)", "+experiment=glob(digits_ps)")[0] == 0
    assert [row["model"] for row in rows()] == ["cnn", "mlp"]
    assert jobs.values("model", "_target_") == ["kdist.models.cnn", "kdist.models.mlp"]


def test_a_large_sweep_says_that_it_checks_its_jobs(jobs, sweep, monkeypatch):
    assert sweep("seed=range(0,3)", "command=plan")[2] == ""
    monkeypatch.setattr(sweep_module, "_MANY_JOBS", 3)
    monkeypatch.setattr(sweep_module, "_SAY_EVERY", 2)
    assert sweep("seed=range(0,5)", "command=plan")[2].splitlines() == [
        "Checking 5 jobs before the first starts.",
        "Checking 5 jobs before the first starts, 2 done.",
        "Checking 5 jobs before the first starts, 4 done.",
    ]


def test_tf_config_is_refused(jobs, sweep, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    code, _, stderr = sweep("seed=1,2")
    assert (code, jobs.requests) == (2, [])
    assert "A sweep starts tasks of its own. Received: -m with TF_CONFIG set." in stderr


def test_a_job_that_fails_ends_no_other(jobs, sweep, capfd):
    told = []

    def play(request, _):
        rate = request.config["optimizer"]["learning_rate"]
        told.append(capfd.readouterr().err)
        if rate == 0.4:
            return ended(request, exit_code=1)
        if rate == 0.1:
            raise SystemExit(3)
        return None

    jobs.play = play
    code, stdout, _ = sweep(RATES)
    assert code == 1
    assert told == ["", "", "Job 1 failed: SystemExit: 3\n"]  # At once, not at the end.
    assert [row["status"] for row in rows()] == ["failed", "failed", "completed"]
    assert [row["error"] for row in rows()] == ["no such width", "SystemExit: 3", ""]
    assert "Sweep: 3 job(s), 1 completed, 2 failed." in stdout
    assert Path("swept/sweep.png").read_bytes().startswith(b"\x89PNG")


def test_fail_fast_starts_no_other_job(jobs, sweep):
    jobs.play = lambda request, _: ended(request, exit_code=1)
    code, stdout, _ = sweep(RATES, "sweep.fail_fast=true")
    assert (code, len(jobs.requests)) == (1, 1)
    assert [row["status"] for row in rows()] == ["failed", "not started", "not started"]
    assert "1 failed, 2 not started" in stdout


def without_seconds(told):
    """Return the text with N.N for how long each job took: it is a busy machine's to say."""
    return re.sub(
        r"(?<=completed in )\d+\.\d(?= s)|(?<=     )\d+\.\d$", "N.N", told, flags=re.MULTILINE
    )


def test_the_table_tells_the_best_job(jobs, sweep):
    code, stdout, stderr = sweep(RATES)
    assert (code, stderr) == (0, "")
    assert without_seconds(stdout).splitlines()[-8:] == [
        "",
        "job  overrides                    status     best          seconds",
        *(
            f"{number}    optimizer.learning_rate={rate}  completed  val_loss {rate}      N.N"
            for number, rate in enumerate((0.4, 0.1, 0.2))
        ),
        "",
        f"Sweep: 3 job(s), 3 completed. {Path('swept').absolute()}",
        "Best: job 1, val_loss 0.1. optimizer.learning_rate=0.1",
    ]
    assert [row["best"] for row in rows()] == ["0.4", "0.1", "0.2"]
    assert [row["optimizer.learning_rate"] for row in rows()] == ["0.4", "0.1", "0.2"]


def test_jobs_go_by_the_metric_that_was_asked_for(jobs, sweep):
    code, stdout, _ = sweep(RATES, "sweep.metric=val_accuracy")
    assert code == 0
    assert "Best: job 0, val_accuracy 0.8." in stdout
    jobs.requests.clear()
    code, _, stderr = sweep(RATES, "sweep.metric=speed", folder="other")
    assert (code, len(jobs.requests)) == (1, 3)
    assert "sweep.metric must be a metric of the run. Received: speed. It has: loss" in stderr


def test_sweep_csv_is_whole_after_every_job(jobs, sweep):
    seen = []
    jobs.play = lambda *_: seen.append(rows() if Path("swept/sweep.csv").exists() else [])
    assert sweep(RATES)[0] == 0
    assert [[row["status"] for row in each] for each in seen[1:]] == [
        ["completed", "not started", "not started"],
        ["completed", "completed", "not started"],
    ]


def test_the_same_sweep_skips_what_was_completed_and_goes_on(jobs, sweep):
    def play(request, _):
        if request.config["optimizer"]["learning_rate"] == 0.1:
            return ended(request, exit_code=130)
        return None

    jobs.play = play
    assert sweep(RATES)[0] == 1
    jobs.play = None
    jobs.requests.clear()
    code, stdout, _ = sweep("optimizer.learning_rate=0.4,0.1,0.2,0.3")
    assert code == 0
    assert jobs.values("optimizer", "learning_rate") == [0.1, 0.3]
    assert jobs.values("resume") == ["auto", "auto"]
    assert "Job 0 was completed before" in stdout
    assert "Job 1 of 4, which goes on: optimizer.learning_rate=0.1" in stdout
    assert [row["status"] for row in rows()] == ["completed"] * 4
    assert rows()[0]["seconds"] == "2.5"


def test_a_folder_of_other_jobs_is_refused(jobs, sweep):
    assert sweep(RATES)[0] == 0
    jobs.requests.clear()
    code, _, stderr = sweep("optimizer.learning_rate=0.4,0.2,0.1")
    assert (code, jobs.requests) == (2, [])
    assert "optimizer.learning_rate was 0.1, is 0.2" in stderr
    assert "Choose another folder for the sweep" in stderr
    code, _, stderr = sweep(RATES, "resume=never")
    assert (code, jobs.requests) == (2, [])
    assert "The run folder already holds a run." in stderr


def test_a_drawn_seed_is_no_difference(jobs, sweep):
    jobs.play = lambda request, _: ended(request, exit_code=130)
    sweep("seed=null,3")
    drawn = jobs.values("seed")[0]
    jobs.play = None
    assert sweep("seed=null,3")[0] == 0
    assert jobs.values("seed") == [drawn, 3, drawn, 3]


def test_two_sweeps_in_one_folder_at_a_time_are_refused(jobs, sweep):
    folder = SweepFolder.claim(Path("swept"), make_unique=False)
    code, _, stderr = sweep("seed=1")
    folder.release()
    assert (code, jobs.requests) == (2, [])
    assert "Another sweep runs in this folder." in stderr


def test_sweeps_of_one_second_get_folders_of_their_own(jobs, sweep, monkeypatch):
    monkeypatch.setattr("hydra.core.utils.datetime", FixedTime)
    for _ in range(3):
        assert sweep("seed=1,2", folder=None)[0] == 0
    folders = sorted(path.name for path in Path("multirun/2026-01-31").iterdir())
    assert folders == ["12-00-00", "12-00-00-2", "12-00-00-3"]
    assert len({each[0].run_dir for each in jobs.requests}) == 6


class FixedTime:
    @classmethod
    def now(cls):
        return cls()

    def strftime(self, pattern):
        return {"%Y-%m-%d": "2026-01-31", "%H-%M-%S": "12-00-00"}[pattern]


def side_by_side(num):
    return ("hydra/launcher=joblib", f"hydra.launcher.n_jobs={num}")


def test_jobs_side_by_side_share_neither_ports_nor_folders(jobs, sweep):
    barrier = threading.Barrier(2, timeout=20)
    jobs.play = lambda *_: barrier.wait() and None
    code, stdout, _ = sweep(*side_by_side(2), "strategy=ps", "seed=1,2,3,4")
    assert code == 0
    for first, second in (jobs.requests[:2], jobs.requests[2:]):
        ports = [
            {found[0].spec.address(task) for task in found[0].spec.tasks()}
            for found in (first, second)
        ]
        assert not ports[0] & ports[1]
    assert len({each[0].run_dir for each in jobs.requests}) == 4
    assert "Job 3 completed in N.N s: val_loss" in without_seconds(stdout)


def test_accelerators_are_dealt_out_one_job_each(jobs, sweep, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    monkeypatch.setattr(sweep_module, "count_accelerators", lambda _: 3)
    busy, most, lock = set(), [], threading.Lock()

    def play(request, _):
        with lock:
            devices = jobs.environments[-1]["CUDA_VISIBLE_DEVICES"]
            assert devices not in busy
            busy.add(devices)
            most.append(len(busy))
        barrier.wait()
        with lock:
            busy.remove(devices)

    barrier = threading.Barrier(3, timeout=20)
    jobs.play = play
    assert sweep(*side_by_side(6), "seed=1,2,3,4,5,6")[0] == 0
    assert max(most) == 3
    assert {each["CUDA_VISIBLE_DEVICES"] for each in jobs.environments} == {"4", "5", "7"}
    assert {each[0].accelerators for each in jobs.requests} == {(0,)}
    barrier = threading.Barrier(1)
    jobs.environments.clear()
    argv = (*side_by_side(6), "sweep.devices_per_job=2", "strategy=mirrored", "seed=1,2")
    assert sweep(*argv, folder="twos")[0] == 0
    assert [each["CUDA_VISIBLE_DEVICES"] for each in jobs.environments] == ["4,5", "4,5"]
    assert jobs.requests[-1][0].num_devices == 2


def test_one_after_the_other_jobs_see_all_accelerators(jobs, sweep, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(sweep_module, "count_accelerators", lambda _: 3)
    assert sweep("strategy=mirrored", "seed=1,2")[0] == 0
    assert jobs.environments == [None, None]
    assert [each[0].num_devices for each in jobs.requests] == [3, 3]


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("num", [1, 2])
def test_a_signal_reaches_the_jobs_that_run_and_starts_no_other(jobs, sweep, name, code, num):
    running = threading.Barrier(num, timeout=20)

    def play(request, signals):
        with signals.opened():
            if running.wait() == 0:
                os.kill(os.getpid(), getattr(signal, name))
            told = threading.Event()
            while not signals.take():
                assert not told.wait(0.01)
        return ended(request, exit_code=code)

    jobs.play = play
    launcher = side_by_side(num) if num > 1 else ()
    assert sweep(*launcher, "seed=1,2,3")[0] == code
    statuses = [row["status"] for row in rows()]
    assert sorted(statuses) == ["not started"] * (3 - num) + ["stopped"] * num


def test_a_signal_that_came_as_the_wait_began_is_found(jobs, sweep, monkeypatch):
    """Python runs its handler between two waits: a wait without an end would never find it."""
    waits = []

    def wait(descriptors, timeout=None):
        waits.append(timeout)
        if len(waits) == 1:
            os.kill(os.getpid(), signal.SIGINT)  # Handled once this has returned.
            return []
        return multiprocessing.connection.wait(descriptors, timeout)

    def play(request, signals):
        with signals.opened():
            told = threading.Event()
            while not signals.take():
                assert not told.wait(0.01)
        return ended(request, exit_code=130)

    monkeypatch.setattr("kdist.cli.sweep.pool.wait", wait)
    jobs.play = play
    assert sweep("seed=1,2")[0] == 130
    assert waits and None not in waits


def test_a_second_signal_reaches_a_job_that_heeded_none(jobs, sweep, monkeypatch):
    killed = []
    monkeypatch.setattr("kdist.cli.sweep.pool.forkserver.kill", lambda: killed.append(True))

    def play(request, signals):
        told = threading.Event()
        os.kill(os.getpid(), signal.SIGINT)  # Before the job listens.
        with signals.opened():
            while not (first := signals.take()):
                assert not told.wait(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            while not (second := signals.take()):
                assert not told.wait(0.01)
        assert (first, second) == ([signal.SIGINT], [signal.SIGTERM])
        return ended(request, exit_code=130)

    jobs.play = play
    assert sweep("seed=1,2")[0] == 130
    assert (killed, [row["status"] for row in rows()]) == ([True], ["stopped", "not started"])


def test_commands_that_train_nothing_leave_nothing(jobs, sweep, tmp_path):
    jobs.play = lambda *_: LocalRun(exit_code=0, cause=None, run_dir=None, warnings=())
    code, stdout, _ = sweep("command=evaluate", "run=a,b")
    assert (code, jobs.values("run")) == (0, ["a", "b"])
    assert "Job 1 of 2: run=b" in stdout
    assert list(tmp_path.iterdir()) == []


def test_a_plan_of_every_job_starts_none(jobs, sweep, tmp_path):
    code, stdout, _ = sweep(*side_by_side(2), "command=plan", "strategy=single,ps", "seed=1,2")
    assert (code, jobs.requests) == (0, [])
    assert "Mode: single" in stdout and "Mode: ps" in stdout
    one = f"python -m kdist {' '.join(SMALL[:-1])} strategy=ps seed=2\n"
    assert stdout.count(one) == 5
    assert list(tmp_path.iterdir()) == []


def test_no_secret_reaches_a_job_folder(jobs, sweep, monkeypatch):
    monkeypatch.setenv("KEY", "secret")
    assert sweep("cluster.key=${oc.env:KEY}", "seed=1,2")[0] == 0
    assert jobs.values("cluster", "key") == ["secret", "secret"]
    assert saved("swept/0")["cluster"]["key"] == "${oc.env:KEY}"


def test_jobs_know_their_number_and_their_folder(jobs, sweep):
    code, *_ = sweep(
        "seed=1,2", "++model.name=job_${hydra:job.num}", "init_from=${hydra:runtime.output_dir}"
    )
    assert code == 0
    assert jobs.values("model", "name") == ["job_0", "job_1"]
    assert jobs.values("init_from") == [each[0].run_dir for each in jobs.requests]
