"""One rule says which epoch was best."""

import math
import re

import pytest

from kdist.training.best import best_of, doubt_about_monitor, more_is_better


@pytest.mark.parametrize(
    ("metric", "is_more_better"),
    [
        ("loss", False),
        ("val_loss", False),
        ("accuracy", True),
        ("val_digit_accuracy", True),
        ("sparse_top_k_categorical_accuracy", True),
        ("acc", True),
        ("auc_1", True),
        ("f1_score", True),
        ("r2_score", True),
        ("mean_io_u", True),
        ("recall_at_precision", True),
        ("mean_absolute_error", False),
        ("mae", False),
        ("false_positives", False),
        ("accuracy_loss", False),
        ("cosine_similarity_loss", False),
        ("poisson", False),
        ("vacc", False),
    ],
)
def test_direction(metric, is_more_better):
    assert more_is_better(metric) is is_more_better


def rows(**series):
    length = len(next(iter(series.values())))
    return [
        {"epoch": i + 1, **{name: values[i] for name, values in series.items()}}
        for i in range(length)
    ]


@pytest.mark.parametrize(
    ("history", "monitor", "best"),
    [
        (rows(loss=[3, 2, 1], val_loss=[2, 1, 3]), None, ("val_loss", 1.0, 2)),
        (rows(loss=[3, 1, 2]), None, ("loss", 1.0, 2)),
        (rows(loss=[1, 1, 2]), None, ("loss", 1.0, 1)),
        (rows(loss=[3, 1], val_accuracy=[0.9, 0.8]), "val_accuracy", ("val_accuracy", 0.9, 1)),
        (rows(loss=[3, 1], val_loss=[None, 2]), None, ("val_loss", 2.0, 2)),
        (rows(loss=[3, 1], val_loss=[math.nan, math.nan]), None, ("loss", 1.0, 2)),
        (rows(loss=[math.nan, -math.inf]), None, None),
        (rows(loss=[1.0]), "val_auc", None),
        ([], None, None),
    ],
)
def test_best(history, monitor, best):
    found = best_of(history, monitor)
    expected = best and dict(zip(("monitor", "value", "epoch"), best, strict=True))
    assert found == expected


@pytest.mark.parametrize(
    ("monitor", "metrics", "has_validation"),
    [
        (None, ["loss"], False),
        (None, ["loss", "val_loss"], True),
        ("accuracy", ["accuracy", "loss"], False),
        ("val_auc", ["loss"], True),  # This epoch was not validated.
    ],
)
def test_no_doubt_about_a_monitor_that_an_epoch_has_or_may_have(monitor, metrics, has_validation):
    assert doubt_about_monitor(monitor, metrics, has_validation=has_validation) is None


@pytest.mark.parametrize(
    ("monitor", "metrics", "has_validation", "received"),
    [
        ("val_nope", ["loss", "val_loss"], True, "checkpoint.monitor=val_nope; .*loss, val_loss"),
        ("val_loss", ["loss"], False, "checkpoint.monitor=val_loss; .*metrics loss"),
        (None, ["val_mine", "mine"], True, "Received: an epoch with the metrics mine, val_mine"),
    ],
)
def test_a_monitor_that_no_epoch_has_is_doubted(monitor, metrics, has_validation, received):
    doubt = doubt_about_monitor(monitor, metrics, has_validation=has_validation)
    assert re.search(received, doubt)
