"""What asynchronous workers cannot train exactly is refused by name, before training."""

import keras
import pytest
import tensorflow as tf

from kdist.errors import ConfigError
from tests.engine.harness import labelled_rows


class Counting(keras.layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(shape=(), dtype="int32", trainable=False, name="calls")

    def call(self, inputs, training=False):
        if training:
            self.calls.assign_add(1)
        return inputs


class Hidden(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.raw = tf.Variable(1.0, name="secret")

    def call(self, inputs):
        return inputs * self.raw


class Unused(keras.layers.Layer):
    def build(self, shape):
        self.idle = self.add_weight(shape=(), name="idle")

    def call(self, inputs):
        return inputs


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (Counting, "calls"),
        (Hidden, "secret"),
        (Unused, "idle"),
        (lambda: keras.layers.SpectralNormalization(keras.layers.Dense(6)), "kernel"),
    ],
)
def test_layers(cluster, layer, name):
    def build():
        model = keras.Sequential([keras.Input((6,)), layer(), keras.layers.Dense(3)])
        model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    with pytest.raises(ConfigError, match=name):
        cluster.prepare(build, {"train": labelled_rows()}, workers=2)


def test_own_train_step(cluster):
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    def build():
        model = Own([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
        model.compile("sgd", loss="sparse_categorical_crossentropy")
        return model

    with pytest.raises(ConfigError, match="train_step"):
        cluster.prepare(build, {"train": labelled_rows()}, workers=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(global_clipnorm=1.0, gradient_accumulation_steps=2),
        lambda: keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(keras.optimizers.SGD(global_clipnorm=1.0))
        ),
    ],
    ids=["accumulating", "one of two optimizers"],
)
def test_global_clipnorm_that_needs_the_whole_gradient(cluster, make):
    def build():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
        optimizer = make()
        model.compile(optimizer, loss="sparse_categorical_crossentropy")
        return model

    with pytest.raises(ConfigError, match=r"global_clipnorm.*cluster\.ps=2"):
        cluster.prepare(build, {"train": labelled_rows()})
