"""Sweeps whose jobs Optuna chooses; jobs are played."""

import os
import signal
import threading
from pathlib import Path

import pytest
import yaml

from .sweep_jobs import ended, rows


def optuna(num_trials, *argv):
    return (
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_jobs=1",
        f"hydra.sweeper.n_trials={num_trials}",
        "hydra.sweeper.sampler.seed=1",
        "optimizer.learning_rate=interval(0.1,0.9)",
        *argv,
    )


def test_optuna_chooses_by_the_values_of_the_jobs(jobs, sweep):
    early = "hydra.sweeper.sampler.n_startup_trials=3"
    code, stdout, _ = sweep(*optuna(12, early))
    assert code == 0
    rates = [float(rate) for rate in jobs.values("optimizer", "learning_rate")]
    assert len(set(rates)) == 12 and all(0.1 <= rate <= 0.9 for rate in rates)
    assert sum(rates[6:]) < sum(rates[:6])
    assert f"Best: job {rates.index(min(rates))}, val_loss" in stdout
    found = yaml.safe_load(Path("swept/optimization_results.yaml").read_text())
    assert found["best_value"] == pytest.approx(min(rates))
    asked_for = list(jobs.requests)
    assert sweep(*optuna(13, early))[0] == 0  # Its seed makes Optuna choose the same values again.
    assert len(jobs.requests) == len(asked_for) + 1


def test_optuna_maximizes_the_metric_that_was_asked_for(jobs, sweep):
    code, stdout, _ = sweep(
        *optuna(8, "hydra.sweeper.direction=maximize", "sweep.metric=val_accuracy")
    )
    rates = [float(rate) for rate in jobs.values("optimizer", "learning_rate")]
    found = yaml.safe_load(Path("swept/optimization_results.yaml").read_text())
    assert (code, found["best_value"]) == (0, pytest.approx(2 * max(rates)))
    assert "val_accuracy" in stdout


def test_a_failed_job_is_a_failed_trial_of_optuna(jobs, sweep):
    jobs.play = lambda request, _: ended(request, exit_code=int(len(jobs.requests) in (2, 3)))
    code, stdout, stderr = sweep(*optuna(5))
    assert (code, len(jobs.requests)) == (1, 5)
    assert "5 job(s), 3 completed, 2 failed" in stdout
    assert "no such width" not in stderr  # A real launcher has told it; here it is a fake.
    jobs.play = lambda request, _: ended(request, exit_code=1)
    assert sweep(*optuna(3), folder="all")[0] == 1
    assert [row["status"] for row in rows("all")] == ["failed"] * 3


def test_a_signal_ends_optuna_too(jobs, sweep):
    def play(request, signals):
        with signals.opened():
            os.kill(os.getpid(), signal.SIGINT)
            told = threading.Event()
            while not signals.take():
                assert not told.wait(0.01)
        return ended(request, exit_code=130)

    jobs.play = play
    assert sweep(*optuna(3))[0] == 130
    assert [row["status"] for row in rows()] == ["stopped"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["hydra.sweeper.direction=[minimize,maximize]"], "A job has one value to go by"),
        (["epochs=0"], "Job 0, optimizer.learning_rate=0."),
        (["hydra.sweeper.storage=nowhere://x"], "hydra/sweeper=optuna raised NoSuchModuleError"),
    ],
)
def test_what_optuna_cannot_do_is_refused(jobs, sweep, tmp_path, argv, said):
    code, _, stderr = sweep(*optuna(3, *argv))
    assert (code, jobs.requests) == (2, [])
    assert said in stderr
    assert list(tmp_path.iterdir()) == []


def test_optuna_chooses_among_the_options_that_a_glob_matches(jobs, sweep):
    assert sweep(*optuna(4, "model=glob(*)"))[0] == 0
    assert {row["model"] for row in rows()} <= {"cnn", "mlp"}
