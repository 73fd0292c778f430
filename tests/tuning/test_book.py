"""The book: which trial runs next, and what becomes of it; with an oracle that only counts."""

import pytest

from kdist.config.schema import Config, TunerConfig
from kdist.errors import ConfigError
from kdist.tuning.book import Book
from kdist.tuning.journal import Journal, read_journal
from kdist.tuning.objective import Objective
from kdist.tuning.trials import COMPLETED, FAILED, PRUNED, SearchState

from .kit import CountingOracle, Suggestion


@pytest.fixture
def open_book(tmp_path):
    """Return a book on the journal in the test's folder, as a search that starts again does."""

    def make(*answers, **tuner):
        config = Config(epochs=5, tuner=TunerConfig(name="random", **tuner))
        path = tmp_path / "search.jsonl"
        journal, state = Journal(path), SearchState.of(read_journal(path))
        if state.settings:
            state.apply(journal.write("go_on"))
        else:
            state.apply(journal.write("begin", settings={"a": 1}, seed=0))
        oracle = CountingOracle(*answers)
        oracle.num = len(state.trials)
        return Book(config, Objective("val_loss", "min"), oracle, journal, state), oracle

    return make


def train(book, assignment, *values):
    book.started(assignment.trial, 1, f"/runs/{assignment.trial}", 0, "local")
    for number, value in enumerate(values, start=1):
        verdict = book.epoch(assignment.trial, 1, number, {"val_loss": value})
    book.ran(assignment.trial, 1)
    return verdict


def test_trials_come_until_there_are_enough(open_book):
    book, oracle = open_book(max_trials=2)
    first, second = book.next_trial("a"), book.next_trial("b")
    assert (first.trial, second.trial, first.epochs) == ("0000", "0001", 5)
    assert book.next_trial("a") is None
    assert not book.is_over  # One that runs may fail, and be run again.
    for trial, value in ((first, 0.3), (second, 0.4)):
        train(book, trial, 0.5, value)
        book.completed(trial.trial)
    assert oracle.ended == {"0000": 0.3, "0001": 0.4}
    assert book.state.trials["0000"].status == COMPLETED
    assert book.is_over


def test_an_idle_oracle_is_asked_again_once_a_trial_has_ended(open_book):
    book, _ = open_book(Suggestion("0000"), "IDLE", Suggestion("0001"))
    first = book.next_trial("a")
    assert book.next_trial("a") is None
    assert book.next_trial("a") is None
    assert not book.is_over
    train(book, first, 0.5)
    book.completed(first.trial)
    assert book.next_trial("a").trial == "0001"


def test_a_failed_trial_is_run_again_and_then_marked(open_book):
    book, oracle = open_book(max_retries=1, max_trials=1)
    first = book.next_trial("a")
    book.failed(first.trial, "was killed")
    again = book.next_trial("a")
    assert (again.trial, again.attempt, again.run_dir) == ("0000", 1, None)
    book.failed(again.trial, "was killed again")
    trial = book.state.trials["0000"]
    assert (trial.status, trial.reason, trial.failures) == (
        FAILED,
        "was killed again",
        ["was killed"],
    )
    assert oracle.ended == {"0000": None}
    assert book.next_trial("a") is None


def test_failures_in_a_row_end_the_search(open_book):
    book, _ = open_book(max_retries=0, max_failures_in_a_row=2)
    for _ in range(2):
        book.failed(book.next_trial("a").trial, "no")
    assert book.is_over
    assert book.next_trial("a") is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_objective_that_is_not_finite_fails_the_run(open_book, value):
    book, _ = open_book()
    verdict = train(book, book.next_trial("a"), 0.5, value)
    assert verdict.action == "fail"
    assert f"val_loss was {value} in epoch 2" in verdict.reason


def test_an_objective_that_is_no_metric_is_refused_with_those_there_are(open_book):
    book, _ = open_book()
    first = book.next_trial("a")
    book.started(first.trial, 1, "/runs/0000", 0, "local")
    with pytest.raises(ConfigError, match=r"Received: val_loss\. They have: loss, accuracy\."):
        book.epoch(first.trial, 1, 1, {"loss": 1.0, "accuracy": 0.5})


def test_a_trial_may_lack_the_objective_that_others_have(open_book):
    book, _ = open_book()
    first = book.next_trial("a")
    train(book, first, 0.5)
    assert book.epoch(first.trial, 1, 2, {"loss": 1.0}).action == "go_on"
    assert book.state.trials[first.trial].best_point(book.objective) == (0.5, 1)


def test_a_hopeless_trial_is_pruned_with_the_score_it_has(open_book):
    book, oracle = open_book(pruner="median", pruner_min_trials=2)
    for value in (0.2, 0.3):
        trial = book.next_trial("a")
        train(book, trial, value)
        book.completed(trial.trial)
    hopeless = book.next_trial("a")
    verdict = train(book, hopeless, 0.9)
    assert verdict.action == "prune"
    book.completed(hopeless.trial, verdict.reason)
    assert book.state.trials[hopeless.trial].status == PRUNED
    assert oracle.ended[hopeless.trial] == 0.9


def test_a_search_that_starts_again_goes_on_with_the_trial_that_ran(open_book):
    book, _ = open_book(max_trials=3)
    done, cut = book.next_trial("a"), book.next_trial("b")
    train(book, done, 0.5)
    book.completed(done.trial)
    book.started(cut.trial, 1, "/runs/0001", 0, "local")
    book.epoch(cut.trial, 1, 1, {"val_loss": 0.4})

    again, _ = open_book(max_trials=3)
    going_on = again.next_trial("a")
    assert (going_on.trial, going_on.execution, going_on.run_dir) == ("0001", 1, "/runs/0001")
    assert again.next_trial("a").trial == "0002"
    assert again.next_trial("a") is None


def test_runs_of_a_trial_that_are_done_are_not_done_again(open_book):
    book, _ = open_book(executions_per_trial=3)
    first = book.next_trial("a")
    train(book, first, 0.5)
    again, _ = open_book(executions_per_trial=3)
    going_on = again.next_trial("a")
    assert (going_on.trial, going_on.execution, going_on.run_dir) == ("0000", 2, None)


def test_more_trials_than_before_go_on_where_the_search_had_ended(open_book):
    book, _ = open_book(max_trials=1)
    train(book, first := book.next_trial("a"), 0.5)
    book.completed(first.trial)
    assert book.next_trial("a") is None
    more, _ = open_book(max_trials=2)
    assert not more.is_over
    assert more.next_trial("a").trial == "0001"


def test_the_trial_of_a_lost_tuner_goes_to_somebody_else(open_book):
    book, _ = open_book(max_trials=1)
    first = book.next_trial("tuner0")
    book.started(first.trial, 1, "/runs/0000", 0, "tuner0")
    assert book.next_trial("tuner1") is None
    book.hand_out_again(first.trial)
    handed = book.next_trial("tuner1")
    assert (handed.trial, handed.attempt, handed.run_dir) == ("0000", 0, "/runs/0000")
