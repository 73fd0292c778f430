"""What the builder makes of what it is given, and tells of what it leaves out."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.assembly.building import Builder
from kdist.config.schema import Config, TargetConfig
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError
from kdist.training.saving import check_can_be_saved

TARGET = "keras.callbacks.TerminateOnNaN"


@pytest.mark.parametrize(
    ("typed_keys", "notes"),
    [
        ((), [f"{TARGET} does not take callbacks.nan.patience: left out."]),
        (("callbacks.nan._target_",), []),  # The key is what another target left there.
    ],
)
def test_keys_that_are_left_out_are_listed_unless_the_target_was_typed(typed_keys, notes):
    section = TargetConfig(target=TARGET, arguments={"patience": 3})
    builder = Builder(Config(callbacks={"nan": section}), typed_keys)
    assert len(builder.callbacks()) == 1
    assert builder.notes == notes


class Waiting(keras.callbacks.Callback):
    def __init__(self, patience=1, name="waiting"):
        super().__init__()


@pytest.mark.parametrize(
    ("typed_keys", "shown"),
    [((), "patience=3"), (("callbacks.wait.patience",), None)],
    ids=["inherited", "typed"],
)
def test_keys_that_another_target_left_are_listed_where_a_typed_one_takes_them(typed_keys, shown):
    path = f"{__name__}.Waiting"
    section = TargetConfig(target=path, arguments={"patience": 3, "name": "waiting", "units": 1})
    builder = Builder(Config(callbacks={"wait": section}), ("callbacks.wait._target_", *typed_keys))
    builder.callbacks()
    found = f"{path} is called with what callbacks.wait held before: {shown}."
    assert [note.split(" ++")[0] for note in builder.notes] == ([found] if shown else [])


def test_own_batches_of_validation_are_not_said_to_be_resumed():
    def batches(context):
        del context
        return tf.data.Dataset.from_tensors((np.zeros([2, 3]), np.zeros([2, 1])))

    builder = Builder(Config(), ())
    builder.use({"make_data": lambda: {"train": batches, "validation": batches}})
    assert builder.data(WorkerShare()).notes == (
        "data.train brings its own batches: batch size, splitting and exact mid-epoch resume are "
        "its own affair.",
        "data.validation brings its own batches: batch size is its own affair.",
    )


@pytest.mark.parametrize(
    ("parts", "notes"),
    [
        (("train",), ()),
        (("train", "validation", "test"), ()),
        (
            ("train", "val", "test"),
            (
                'The data function returns no "validation" part: nothing is validated. '
                "Not used: val, test.",
            ),
        ),
    ],
    ids=["train only", "test", "another name"],
)
def test_parts_under_other_names_are_told_where_validation_is_missing(parts, notes):
    builder = Builder(Config(), ())
    builder.use({"make_data": lambda: dict.fromkeys(parts, (np.zeros([2, 3]), np.zeros([2, 1])))})
    assert builder.data(WorkerShare()).notes == notes


def dense(*layers):
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1, name="size")])
    return keras.Model(model.inputs, model.outputs)


def test_classes_of_losses_and_metrics_are_called_so_that_the_model_can_be_saved(tmp_path):
    """Keras trains with a class, and cannot save the model then."""
    loss, metric = keras.losses.MeanSquaredError, keras.metrics.MeanAbsoluteError
    builder = Builder(Config(), ())
    builder.use({"build_model": dense, "loss": [loss], "metrics": {"size": [metric]}})
    model = builder.model()
    model.train_on_batch(np.ones([2, 3]), np.ones([2, 1]))
    model.save(tmp_path / "model.keras")


def two_outputs():
    rows = keras.Input((3,))
    return keras.Model(rows, {name: keras.layers.Dense(1, name=name)(rows) for name in "ab"})


@pytest.mark.parametrize(
    ("loss", "metrics", "typed_keys", "has_default"),
    [
        ({"a": "mse", "b": "mae"}, ["accuracy"], (), False),
        ({"a": "mse", "b": "mae"}, {"a": ["mae"]}, (), True),
        ({"a": "mse", "b": "mae"}, ["accuracy"], ("metrics",), True),
        ("mse", ["accuracy"], (), True),
        ({"a": "mse", "b": "mae"}, [], (), True),
    ],
    ids=["default", "by output", "typed", "one loss", "none"],
)
def test_metrics_for_one_output_are_no_default_for_several(loss, metrics, typed_keys, has_default):
    builder = Builder(Config(loss=loss, metrics=metrics), typed_keys)
    builder.use({"build_model": two_outputs})
    builder.model()
    said = "metrics=[accuracy], the default, is left out: there are 2 losses."
    assert [note.startswith(said) for note in builder.notes] == ([] if has_default else [True])


def test_what_is_no_callback_is_refused():
    builder = Builder(Config(), ())
    builder.use({"callbacks": [keras.callbacks.TerminateOnNaN(), 3]})
    with pytest.raises(ConfigError, match=r"must be keras\.callbacks\.Callback .* Received: 3\."):
        builder.callbacks()


class Scaled(keras.layers.Layer):
    def __init__(self, scale, **options):
        super().__init__(**options)
        self.scale = scale

    def call(self, inputs):
        return inputs * self.scale()


def test_a_model_that_cannot_be_saved_is_refused_before_training():
    with pytest.raises(
        ConfigError, match=r"cannot save the model.* Scaled .*get_config.*Functional"
    ):
        check_can_be_saved(dense(Scaled(float)))


def test_a_model_that_can_be_saved_is_not():
    check_can_be_saved(keras.Sequential([keras.layers.Dense(2)]))
    check_can_be_saved(dense(keras.layers.Lambda(lambda inputs: inputs * 2)))
