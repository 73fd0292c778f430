"""A model with a `compute_metrics` of its own."""

import keras
import pytest

from .harness import fit, labelled_rows, prepare, train

ROWS = {"train": labelled_rows()}


class Doubting(keras.Model):
    """Returns a number that no metric holds, or only what metrics hold."""

    extra = True

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        found = super().compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return {**found, "doubt": keras.ops.std(y_pred)} if self.extra else found


class Plain(Doubting):
    extra = False


class Silent(keras.Model):
    """Returns nothing, as some do who look at their metrics only."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        super().compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def build_of(kind):
    def build():
        inputs = keras.Input((6,))
        model = kind(inputs, keras.layers.Dense(3)(inputs))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss=loss, metrics=["accuracy"])
        return model

    return build


def test_what_no_metric_holds_is_said():
    [warning] = prepare(build_of(Doubting), ROWS).engine.warnings
    assert warning.startswith("Doubting.compute_metrics returns what no metric holds")
    assert "doubt." in warning
    assert prepare(build_of(Plain), ROWS).engine.warnings == ()
    assert prepare(build_of(Silent), ROWS).engine.warnings == ()


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_metrics_equal_those_of_keras(replicas):
    reference = fit(build_of(Plain), ROWS)
    history = train(build_of(Doubting), ROWS, replicas=replicas).history
    for name in ("loss", "accuracy"):
        assert history[name] == pytest.approx(reference.history[name], abs=1e-5)
