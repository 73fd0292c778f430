"""The lines of the opening, of progress, and of the end."""

import dataclasses

import pytest

from kdist.training.report import closing_text, text


def test_opening_of_a_small_run(opening):
    lines = text.opening_lines(opening())
    assert [(line.label, line.text) for line in lines] == [
        ("mode", "mirrored: 2 replicas in one process"),
        ("why", "strategy=mirrored was asked for"),
        ("tasks", "chief-0"),
        ("devices", "CPU:0, CPU:1"),
        ("batch", "64 examples: 32 on each of 2 replicas"),
        ("model", "4,810 parameters, 18.8 KiB"),
        ("data", "1,437 training and 360 validation examples; 5 epochs of 23 batches"),
        ("run folder", "outputs/2031-01-02/03-04-05"),
    ]


def test_opening_warns_of_open_ports_and_shows_each_note(opening):
    lines = text.opening_lines(opening(open_ports=("worker-0:4001", "ps-0:4002"), notes=("a", "b")))
    assert [(line.label, line.text, line.is_warning) for line in lines[-4:]] == [
        ("open ports", "worker-0:4001, ps-0:4002", False),
        ("", text.SERVER_WARNING, True),
        ("note", "a", True),
        ("", "b", True),
    ]


@pytest.mark.parametrize(
    ("num_replicas", "global_size", "sizes", "expected"),
    [
        (1, 64, (64,), "64 examples"),
        (2, 7, (4, 3), "7 examples: 4 + 3"),
        (9, 10, (2, *(1,) * 8), "10 examples: 1 to 2 on each of 9 replicas"),
        (2, 64, (64, 64), "64 examples; each batch of the 2 workers is an update of its own"),
        (2, None, (), "as the data brings them"),
    ],
)
def test_batch(opening, num_replicas, global_size, sizes, expected):
    facts = opening(
        num_replicas=num_replicas, global_batch_size=global_size, per_replica_batch_sizes=sizes
    )
    assert text.batch_text(facts) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"validation_examples": None}, "1,437 training examples; 5 epochs of 23 batches"),
        ({"train_examples": None, "validation_examples": None}, "5 epochs of 23 batches"),
        (
            {"train_examples": None, "steps_per_epoch": None, "epochs": 1},
            "360 validation examples; 1 epoch",
        ),
    ],
)
def test_data(opening, changes, expected):
    assert text.data_text(opening(**changes)) == expected


def test_progress_line(progress):
    assert text.progress_line(progress()) == (
        "epoch 2/5  step 12/23  loss 0.5123  accuracy 0.9000  123 steps/s  ETA 1:02"
    )


def test_progress_line_leaves_out_what_is_unknown(progress):
    facts = progress(steps_per_epoch=None, steps_per_second=None, eta_s=None, metrics={})
    assert text.progress_line(facts) == "epoch 2/5  step 12/?"


def test_epoch_line(epoch):
    parts = text.epoch_parts(epoch(2, loss=0.5, val_loss=0.25), epochs=10, num_steps=23)
    assert "  ".join(parts) == "epoch  2/10  loss 0.5000  val_loss 0.2500  0.50 s  46 steps/s"


@pytest.mark.parametrize(
    ("num_steps", "said"),
    [(266, "partial: 266 of 1,250 batches"), (1250, "partial: not validated")],
)
def test_an_epoch_that_a_stop_ended_is_no_whole_one(epoch, num_steps, said):
    facts = dataclasses.replace(epoch(3, loss=0.5), planned_steps=1250)
    parts = text.epoch_parts(facts, epochs=20, num_steps=num_steps)
    assert parts[:3] == ["epoch  3/20", said, "loss 0.5000"]


def test_lines_break_between_parts():
    assert text.wrapped(["epoch 2", "loss 0.5000", "46 steps/s", "x"], 20) == [
        "epoch 2  loss 0.5000",
        "    46 steps/s  x",
    ]
    assert text.wrapped(["longer than the width", "x"], 4) == ["longer than the width", "    x"]


RESULT = {
    "status": "completed",
    "metrics": {"loss": 0.1, "val_loss": 0.3},
    "best": {"monitor": "val_loss", "value": 0.2, "epoch": 1},
    "seconds": {"total": 12.3, "startup": 2.1, "train": 9.8},
    "steps_per_second": 46.0,
    "examples_per_second": 2874.0,
    "batches_seen": 46,
    "examples_seen": 2874,
    "warnings": [],
    "run_dir": "outputs/x",
}
METRICS = {1: {"loss": 0.2, "val_loss": 0.2}, 2: {"loss": 0.1, "val_loss": 0.3}}


@pytest.fixture
def history(epoch):
    return {number: epoch(number, **metrics) for number, metrics in METRICS.items()}


def test_closing_lines():
    assert closing_text.closing_title(RESULT) == "completed in 12.3 s"
    assert [(line.label, line.text) for line in closing_text.closing_lines(RESULT)] == [
        ("throughput", "46 steps/s, 2,874 examples/s"),
        ("time", "2.10 s until the first step, 9.80 s training"),
        ("trained on", "46 batches, 2,874 examples"),
        ("run folder", "outputs/x"),
    ]


def test_closing_of_a_run_that_failed_early_leaves_the_error_to_the_launcher():
    result = {
        "status": "failed",
        "error": {"type": "ValueError", "message": "bad", "task": "worker-1"},
        "metrics": None,
        "best": None,
        "seconds": {"total": 1.5, "startup": None, "train": None},
        "steps_per_second": None,
        "warnings": ["one", "two"],
    }
    assert closing_text.closing_title(result) == "failed after 1.50 s"
    assert closing_text.closing_columns(result, {}) == ()
    assert [(line.label, line.text) for line in closing_text.closing_lines(result)] == [
        ("warning", "one"),
        ("", "two"),
    ]


def test_closing_columns_show_last_best_and_final(history):
    columns = closing_text.closing_columns(RESULT | {"final_metrics": {"val_loss": 0.15}}, history)
    assert columns == (
        ("last epoch (2)", METRICS[2]),
        ("best epoch (1, by val_loss)", METRICS[1]),
        ("final weights", {"val_loss": 0.15}),
    )


def test_a_last_epoch_that_a_stop_ended_is_called_partial(history):
    history[2] = dataclasses.replace(history[2], planned_steps=100)
    headings = [heading for heading, _ in closing_text.closing_columns(RESULT, history)]
    assert headings == ["last epoch (2, partial)", "best epoch (1, by val_loss)"]


def test_closing_columns_join_when_the_last_epoch_is_the_best(history):
    result = RESULT | {"best": {"monitor": "loss", "value": 0.1, "epoch": 2}}
    assert closing_text.closing_columns(result, history) == (
        ("last and best epoch (2, by loss)", METRICS[2]),
    )


def test_null_metrics_of_a_diverged_run_are_left_out(history):
    columns = closing_text.closing_columns(
        RESULT | {"metrics": {"loss": None, "auc": 0.5}}, history
    )
    assert columns[0] == ("last epoch (2)", {"auc": 0.5})


def test_updates_on_servers_are_told_at_the_end():
    result = {
        "status": "completed",
        "stale_gradients_dropped": 3,
        "staleness": {"mean": 0.75, "maximum": 9, "histogram": {"0": 25, "1": 75}},
        "contributions": {"worker-0": 1200, "worker-1": 4},
    }
    lines = {line.label: line.text for line in closing_text.closing_lines(result)}
    assert lines["staleness"] == "0.75 updates on average, 9 at most (0: 25%, 1: 75%)"
    assert lines["contributed"] == (
        "worker-0 1,200, worker-1 4; 3 stale gradients dropped and dealt again"
    )
    assert "staleness" not in {
        line.label for line in closing_text.closing_lines({"status": "completed"})
    }
