"""A run of a model with its own `train_step` goes on as the run that it would have been."""

import keras
import pytest
import tensorflow as tf

from kdist.errors import ConfigError

from .cases import LOGITS, ROWS, L
from .runs import DiesAt, Killed, assert_same_run, run
from .test_own_train_step import Doubled

EVERY_STEP = {"checkpoint": {"every_steps": 1, "every_epochs": None}}


def doubled():
    """Slots, a schedule, the seed of random layers, and a metric that only `train_step` sees."""
    model = Doubled()
    rate = keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.8)
    model.compile(keras.optimizers.Adam(rate), loss=LOGITS, metrics=["accuracy"])
    return model


@keras.saving.register_keras_serializable("test")
class Adversaries(keras.Model):
    """Two parts against each other, each with an optimizer of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inventor = keras.Sequential([L.Dense(8, activation="tanh"), L.Dense(6)])
        self.critic = keras.Sequential([L.Dense(8, activation="tanh"), L.Dense(1)])
        self.seeds = keras.random.SeedGenerator(7)
        self.gap = keras.metrics.Mean(name="gap")

    def compile(self, inventor_optimizer, critic_optimizer):
        super().compile()
        self.inventor_optimizer = inventor_optimizer
        self.critic_optimizer = critic_optimizer

    def call(self, x):
        return self.critic(x) - self.critic(self.inventor(x))

    def train_step(self, data):
        noise = keras.random.normal(keras.ops.shape(data[0]), seed=self.seeds)
        for part, optimizer, sign in (
            (self.critic, self.critic_optimizer, 1.0),
            (self.inventor, self.inventor_optimizer, -1.0),
        ):
            with tf.GradientTape() as tape:
                judged = self.critic(self.inventor(noise)) - self.critic(data[0])
                loss = sign * keras.ops.mean(keras.ops.softplus(judged))
            weights = part.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.gap.update_state(loss)
        return {"gap": self.gap.result()}


def adversaries():
    model = Adversaries()
    model.compile(keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.02, momentum=0.9))
    return model


CASES = {"doubled": (doubled, ROWS), "adversaries": (adversaries, {"train": ROWS["train"]})}


@pytest.mark.parametrize(
    ("name", "devices", "died_at"),  # An epoch has five batches.
    [
        ("doubled", 1, 8),
        ("adversaries", 1, 8),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("doubled", 1, 3),
                ("doubled", 2, 8),
                ("adversaries", 1, 3),
            )
        ),
    ],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(name, devices, died_at, tmp_path):
    build, data = CASES[name]
    options = {"epochs": 3, "devices": devices, **EVERY_STEP}
    options["strategy"] = {"allow_custom_train_step": True}
    _, unbroken = run(tmp_path / "unbroken", build, data, **options)
    with pytest.raises(Killed):
        run(tmp_path / "run", build, data, callbacks=[DiesAt(died_at)], **options)
    code, left = run(tmp_path / "run", build, data, **options)
    assert code == 0
    assert left.result["resumed_from_step"] == died_at - 1
    num_optimizers = 2 if name == "adversaries" else 1
    assert left.result["global_step"] == 15 * num_optimizers
    assert_same_run(left, unbroken)


@pytest.mark.slow
def test_another_optimizer_of_its_own_is_refused(tmp_path):
    def faster():
        model = adversaries()
        model.critic_optimizer.learning_rate = 0.5
        return model

    data = {"train": ROWS["train"]}
    with pytest.raises(Killed):
        run(tmp_path, adversaries, data, callbacks=[DiesAt(6)])
    with pytest.raises(
        ConfigError, match=r"optimizer 3 optimizer learning_rate was 0\.0\d+, is 0\.5"
    ):
        run(tmp_path, faster, data)


def test_optimizers_of_its_own_stay_on_one_replica(tmp_path):
    options = {"devices": 2, "strategy": {"allow_custom_train_step": True}}
    with pytest.raises(ConfigError, match=r"Adversaries keeps optimizers.*Adam, SGD, 2 replicas"):
        run(tmp_path, adversaries, {"train": ROWS["train"]}, **options)
