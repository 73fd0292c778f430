"""TensorBoard finds the scalars under the names that Keras gives them."""

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import backend_context
from tensorboard.util import tensor_util

from kdist.training.report.facts import ContributionSample
from kdist.training.report.tensorboard import TensorBoardLog


def scalars(directory):
    events = EventAccumulator(str(directory)).Reload()
    return {
        tag: [
            (event.step, round(float(tensor_util.make_ndarray(event.tensor_proto)), 6))
            for event in events.Tensors(tag)
        ]
        for tag in events.Tags()["tensors"]
    }


def test_train_and_validation_are_two_runs(tmp_path, epoch):
    log = TensorBoardLog(tmp_path)
    log.epoch(epoch(1, loss=0.5, val_loss=0.25))
    log.epoch(epoch(2, loss=0.4, val_loss=0.2))
    expected = {
        "epoch_loss": [(1, 0.5), (2, 0.4)],
        "epoch_learning_rate": [(1, 0.001), (2, 0.001)],
        "epoch_steps_per_second": [(1, 46.0), (2, 46.0)],
    }
    assert scalars(tmp_path / "train") == expected, "readable while the run goes on"
    log.close()
    log.close()
    assert scalars(tmp_path / "validation") == {"epoch_loss": [(1, 0.25), (2, 0.2)]}


def test_contributions_show_which_worker_an_update_is_from(tmp_path):
    log = TensorBoardLog(tmp_path)
    log.contributions(
        ContributionSample(updates=(7, 8), shares=(7, 9), workers=(1, 0), staleness=(0, 2))
    )
    log.close()
    assert scalars(tmp_path / "workers") == {
        "contribution_worker": [(7, 1.0), (8, 0.0)],
        "contribution_staleness": [(7, 0.0), (8, 2.0)],
    }


def test_nothing_is_made_before_the_first_epoch(tmp_path):
    TensorBoardLog(tmp_path / "tensorboard").close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path, epoch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        TensorBoardLog(tmp_path / "file" / "tensorboard").epoch(epoch(1, loss=0.5))


def test_runs_are_compared_by_what_was_set(tmp_path, epoch):
    """As TensorBoard's HParams reads it: settings of each run, and the scalars below its folder."""
    for index, rate in enumerate((0.1, 0.2)):
        log = TensorBoardLog(tmp_path / str(index))
        log.opening({"optimizer.learning_rate": rate, "loss": "mse", "seed": 3, "flag": True})
        log.epoch(epoch(1, loss=rate, val_loss=0.25))
        log.epoch(epoch(2, loss=rate, val_loss=0.25))
        log.close()
    events = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    provider = MultiplexerDataProvider(events, str(tmp_path))
    read = backend_context.Context(TBContext(data_provider=provider, logdir=str(tmp_path)))
    request = RequestContext()
    found = read.experiment_from_metadata(
        request, "runs", True, read.hparams_metadata(request, "runs"), []
    )
    assert {(each.name, each.differs) for each in found.hparam_infos} == {
        ("optimizer.learning_rate", True),
        ("loss", False),
        ("seed", False),
        ("flag", False),
    }
    names = {(each.name.group, each.name.tag) for each in found.metric_infos}
    assert ("validation", "epoch_loss") in names
