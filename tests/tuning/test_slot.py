"""Trials run by slots, with runs that only write what real ones would."""

import json
import shutil
import threading

import pytest

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.config.schema import CheckpointConfig, Config, TunerConfig
from kdist.errors import ConfigError, EnvironmentFault
from kdist.launch.local import LocalRun
from kdist.launch.policy import Cause
from kdist.launch.request import TaskRequest
from kdist.tuning import trial_run
from kdist.tuning.book import Book
from kdist.tuning.journal import Journal, read_journal
from kdist.tuning.loop import Stop, Wake, run_trials
from kdist.tuning.objective import Objective
from kdist.tuning.slot import Slot
from kdist.tuning.trials import SearchState

from .kit import CountingOracle, Suggestion, append_epoch, write_epochs

LOSS = Objective("val_loss", "min")
CHIEF = Task(TaskType.CHIEF, 0)
SPEC = ClusterSpec({TaskType.CHIEF: ("127.0.0.1:0",)})


class FakeRuns:
    """Takes the place of `run_tasks`: each run writes its losses, then ends as it is told to."""

    def __init__(self):
        self.losses = {}  # By folder name; the rest get [0.5].
        self.endless = set()  # Those that end only when they are stopped.
        self.causes = {}
        self.started = []
        self.configs = {}
        self.num_running = 0

    def __call__(self, requests, *, signals, stdout, stderr):
        self.num_running += 1
        try:
            return self.run(requests, signals)
        finally:
            self.num_running -= 1

    def run(self, requests, signals):
        folder = trial_run.Path(requests[0].run_dir)
        self.started.append(folder.name)
        folder.mkdir(parents=True, exist_ok=True)
        write_epochs(folder, self.losses.get(folder.name, [0.5]))
        code, cause = 0, self.causes.get(folder.name)
        if folder.name in self.endless:
            with signals.opened():
                for _ in range(200):
                    if numbers := signals.take():
                        break
                    threading.Event().wait(0.05)
                code = 128 + numbers[0]
                append_epoch(folder, 9, "", is_partial=True)
        if cause is not None:
            code = cause.exit_code
        return LocalRun(exit_code=code, cause=cause, run_dir=folder, warnings=())


@pytest.fixture
def runs(monkeypatch):
    fake = FakeRuns()
    monkeypatch.setattr(trial_run, "run_tasks", fake)
    return fake


@pytest.fixture
def search(tmp_path, runs):
    """Run a search with these settings; return its state."""

    def run(
        *answers, stop_when=None, num_slots=1, compose_error=None, config=None, folder=".", **tuner
    ):
        settings = {"name": "random", "max_retries": 0, **tuner}
        config = config or Config(epochs=3, tuner=TunerConfig(**settings))
        search_dir = tmp_path / folder
        search_dir.mkdir(exist_ok=True)
        path = search_dir / "search.jsonl"
        journal, state = Journal(path), SearchState.of(read_journal(path))
        if state.settings:
            state.apply(journal.write("go_on"))
        else:
            state.apply(journal.write("begin", settings={"a": 1}, seed=0))
        wake = Wake()
        stop = Stop(wake)
        objective = Objective.of(config.tuner.objective, None)

        def on_change(trial):
            if stop_when is not None and stop_when(trial):
                stop.numbers.append(15)

        def compose(order):
            if compose_error is not None:
                raise compose_error
            runs.configs[trial_run.Path(order.run_dir).name] = dict(order.settings)
            return (
                TaskRequest(
                    config={"epochs": 3},
                    config_yaml="",
                    typed_keys=(),
                    spec=SPEC,
                    task=CHIEF,
                    run_dir=order.run_dir,
                    is_local=True,
                ),
            )

        oracle = CountingOracle(*answers)
        oracle.num = len(state.trials)
        book = Book(config, objective, oracle, journal, state, on_change)
        slots = [
            Slot(
                number,
                config,
                (),
                compose,
                book,
                trials_dir=search_dir / "trials",
                tuner="local",
                wake=wake,
            )
            for number in range(num_slots)
        ]
        run_trials(slots, book, tuner="local", wake=wake, stop=stop, stop_grace_s=10.0)
        return state

    return run


def test_trials_run_to_their_scores(search, runs):
    runs.losses = {"0000": [0.9, 0.4, 0.6], "0001": [0.7]}
    state = search(max_trials=2, num_slots=2)
    assert [(t.status, t.score, t.best_epoch) for t in state.trials.values()] == [
        ("completed", 0.4, 2),
        ("completed", 0.7, 1),
    ]
    assert runs.configs["0000"] == {"epochs": 3, "resume": "auto"}


def test_runs_of_one_trial_come_one_after_the_other(search, runs):
    runs.losses = {"0000": [0.4], "0000-run2": [0.8]}
    state = search(max_trials=1, executions_per_trial=2)
    assert runs.started == ["0000", "0000-run2"]
    assert runs.configs["0000-run2"]["seed"] == 1
    assert state.trials["0000"].score == pytest.approx(0.6)


def test_a_run_that_fails_is_run_again_in_a_folder_of_its_own(search, runs):
    runs.causes = {
        "0000": Cause(task=CHIEF, type="TaskDied", message="was killed by SIGKILL", exit_code=1)
    }
    state = search(max_trials=1, max_retries=1)
    assert runs.started == ["0000", "0000-retry1"]
    trial = state.trials["0000"]
    assert (trial.status, trial.failures) == ("completed", ["TaskDied: was killed by SIGKILL"])


def test_a_loss_that_is_no_number_stops_the_run(search, runs):
    runs.losses, runs.endless = {"0000": [0.5, float("nan")]}, {"0000"}
    state = search(max_trials=1)
    assert state.trials["0000"].status == "failed"
    assert state.trials["0000"].reason == "val_loss was nan in epoch 2."


def test_a_hopeless_run_is_stopped_and_counts_as_it_stands(search, runs):
    runs.losses = {"0000": [0.1], "0001": [0.2], "0002": [0.9]}
    runs.endless = {"0002"}
    state = search(max_trials=3, pruner="median", pruner_min_trials=2)
    assert [t.status for t in state.trials.values()] == ["completed", "completed", "pruned"]
    assert state.trials["0002"].score == 0.9


def test_a_signal_leaves_running_trials_for_later(search, runs):
    runs.losses, runs.endless = {"0001": [0.6]}, {"0001"}
    state = search(max_trials=3, stop_when=lambda trial: trial.id == "0001" and trial.curve(LOSS))
    assert [t.status for t in state.trials.values()] == ["completed", "running"]
    assert not state.trials["0001"].failures


FULL = "model.keras cannot be written: No space left on device. Check the space there."


@pytest.mark.parametrize("kind", ["EnvironmentFault", "CheckpointWriteError"])
def test_a_fault_of_the_machine_leaves_the_trial_unfinished(search, runs, kind):
    runs.causes = {"0001": Cause(task=CHIEF, type=kind, message=FULL, exit_code=1)}
    with pytest.raises(EnvironmentFault, match=r"Trial 0001 cannot go on: .*No space left"):
        search(max_trials=3)
    runs.causes.clear()
    state = search(max_trials=3)
    assert [t.status for t in state.trials.values()] == ["completed"] * 3
    assert runs.started == ["0000", "0001", "0001", "0002"]


@pytest.mark.parametrize(("has_checkpoint", "names"), [(False, ["0000", "0000-retry1"]),
                                                       (True, ["0000"])])  # fmt: skip
def test_a_fault_of_the_machine_is_worth_a_retry_where_that_loses_nothing(
    search, runs, tmp_path, has_checkpoint, names
):
    fault = Cause(task=CHIEF, type="EnvironmentFault", message=FULL, exit_code=2)
    runs.causes = {"0000": fault, "0000-retry1": fault}
    if has_checkpoint:
        (tmp_path / "trials" / "0000" / "checkpoints").mkdir(parents=True)
    with pytest.raises(EnvironmentFault):
        search(max_trials=3, max_retries=1)
    assert runs.started == names


def test_a_copy_of_a_search_goes_on_in_its_own_folder(search, runs, tmp_path):
    runs.endless = {"0000"}
    search(max_trials=1, folder="original", stop_when=lambda trial: trial.curve(LOSS))
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    left = (tmp_path / "original" / "trials" / "0000" / "metrics.csv").read_text()
    runs.endless, runs.losses = set(), {"0000": [0.5, 0.2]}
    state = search(max_trials=1, folder="copy")
    assert state.trials["0000"].best_run_dir(LOSS) == str(tmp_path / "copy" / "trials" / "0000")
    assert state.trials["0000"].score == 0.2
    assert (tmp_path / "original" / "trials" / "0000" / "metrics.csv").read_text() == left


def test_values_that_make_no_run_fail_their_trial(search):
    state = search(max_trials=1, compose_error=ConfigError("no such thing"))
    assert (state.trials["0000"].status, state.trials["0000"].reason) == ("failed", "no such thing")


def test_an_objective_that_is_no_metric_ends_the_search_and_its_runs(search, runs):
    runs.endless = {"0000", "0001"}
    with pytest.raises(ConfigError, match="They have: loss, val_loss"):
        search(objective="accuracy", num_slots=2)
    assert runs.num_running == 0


@pytest.mark.parametrize(
    ("checkpoint", "resume"),
    [
        (CheckpointConfig(), "{folder}/trials/0000"),
        (CheckpointConfig(dir="gs://bucket/x/"), "gs://bucket/x/0000"),
    ],
)
def test_hyperband_trials_resume_their_parent(search, runs, tmp_path, checkpoint, resume):
    (tmp_path / "trials" / "0000" / "checkpoints").mkdir(parents=True)
    runs.losses = {"0001": [0.5, 0.4]}
    config = Config(tuner=TunerConfig(name="hyperband", max_trials=2), checkpoint=checkpoint)
    first = Suggestion("0000", epochs=1)
    child = Suggestion("0001", parent="0000", initial_epoch=1, epochs=2)
    state = search(first, child, config=config)
    assert runs.configs["0001"]["resume"] == resume.format(folder=tmp_path)
    assert runs.configs["0001"]["epochs"] == 2
    assert state.trials["0001"].curve(LOSS) == {2: 0.4}


def test_a_search_goes_on_from_whatever_its_journal_holds(search, runs, tmp_path):
    """Killed after any line of it, or in the middle of one."""
    runs.losses = {"0000": [0.9, 0.4], "0001": [0.7], "0002": [0.8]}
    runs.causes = {"0001": Cause(task=CHIEF, type="TaskDied", message="killed", exit_code=1)}
    whole = search(max_trials=3, max_retries=1)
    path = tmp_path / "search.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) > 12
    for num in range(1, len(lines)):
        done = {e["id"] for e in map(json.loads, lines[:num]) if e["do"] == "end"}
        path.write_text("".join(lines[:num]) + lines[num][:9])
        runs.started.clear()
        state = search(max_trials=3, max_retries=1)
        created = [e["id"] for e in read_journal(path) if e["do"] == "create"]
        assert created == ["0000", "0001", "0002"]
        assert [t.status for t in state.trials.values()] == ["completed"] * 3
        assert [t.score for t in state.trials.values()] == [t.score for t in whole.trials.values()]
        assert not done & {name[:4] for name in runs.started}
