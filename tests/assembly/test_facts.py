"""What a run tells of itself when it begins."""

from kdist.assembly.facts import hyperparameters

CONFIG = """
seed: 3
loss: {_target_: keras.losses.Huber, delta: 0.5}
lossy: true
model: {_target_: my.build, units: 8, token: "${oc.env:TOKEN}", names: [a]}
data: {batch_size: 64, path: "/secret"}
strategy: {name: ps, collective: auto}
"""


def test_runs_are_compared_by_what_they_learn_with_and_secrets_stay_out():
    assert hyperparameters(CONFIG) == {
        "seed": 3,
        "loss._target_": "keras.losses.Huber",
        "loss.delta": 0.5,
        "model._target_": "my.build",
        "model.units": 8,
        "data.batch_size": 64,
        "strategy.name": "ps",
    }
