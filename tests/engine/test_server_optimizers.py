"""Every optimizer of Keras on two servers' store does what it does on the model's variables.

The servers are two devices of this process: what is under test is how the store deals variables,
clips, and keeps clones, not how messages travel (tests/ps).
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist import config as kdist_config
from kdist.assembly.layouts import plan_layout
from kdist.distribute.buckets.pieces import gradient_of_piece
from kdist.distribute.model.structure import analyse, build_on_batch
from kdist.distribute.servers.server_store import ServerStore
from kdist.distribute.step.compute import StepCompute
from kdist.distribute.store.replicated_store import to_numpy
from kdist.errors import ConfigError
from kdist.training.slot_mapping import SlotMapping
from tests.engine.test_optimizer import BY_VARIABLE, FLAT

optimizers = keras.optimizers
SERVERS = ["/device:CPU:0", "/device:CPU:1"]
X, Y = np.ones((4, 6), "float32"), np.array([0, 1, 2, 0])


def without_bias(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def two_kinds(**options):
    """An optimizer for kernels and one for biases, each with weight decay left out somewhere."""
    kernels = optimizers.AdamW(0.05, weight_decay=0.3)
    kernels.exclude_from_weight_decay(var_names=["kernel"])
    biases = optimizers.SGD(0.1, momentum=0.5, weight_decay=0.2)
    return optimizers.MultiOptimizer(
        optimizers.OptimizerMap(biases, {".*kernel": kernels}), **options
    )


MORE = {
    "adamw_without_bias": lambda: without_bias(optimizers.AdamW(0.05, weight_decay=0.3)),
    "lion_without_bias": lambda: without_bias(optimizers.Lion(0.02, weight_decay=0.3)),
    "two_with_exclusions": two_kinds,
    "scaled_global_clipnorm": lambda: optimizers.SGD(
        0.1, momentum=0.9, global_clipnorm=0.5, loss_scale_factor=8.0
    ),
    "ema_at_the_end": lambda: optimizers.Adam(0.05, use_ema=True, ema_momentum=0.7),
    "accumulating_clipnorm": lambda: optimizers.RMSprop(
        0.05, gradient_accumulation_steps=2, clipnorm=0.3
    ),
    "piecewise": lambda: optimizers.Adagrad(
        optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.3, 0.2, 0.1])
    ),
}
ALL = {**FLAT, **BY_VARIABLE, **MORE}

# The same code paths as others; all of them run in `make test-all`.
SLOW = {
    *("nesterov", "adam", "adamw", "adamax", "adadelta", "rmsprop", "lion", "lamb", "muon"),
    *("lion_without_bias", "two", "piecewise", "ema_at_the_end"),
}
IN_PIECES = ("amsgrad", "nadam", "overwriting", "accumulating", "adamw_without_bias")


def built_model(make):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((6,)), keras.layers.Dense(5, bias_initializer="normal")]
    model = keras.Sequential([*layers, keras.layers.Dense(3, bias_initializer="normal")])
    model.compile(make(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, build_on_batch(model, X, Y, None)


def random_gradients(model, num_steps=4):
    rng = np.random.default_rng(2)
    return [
        [rng.normal(size=v.shape).astype("float32") for v in model.trainable_variables]
        for _ in range(num_steps)
    ]


def server_store(make, partition_bytes=1 << 20):
    model, y_pred = built_model(make)
    structure = analyse(model, y_pred, carries_seeds=False)
    config = kdist_config.load({"strategy": {"name": "ps", "partition_bytes": partition_bytes}})
    layout = plan_layout(config, structure, num_servers=2)
    store = ServerStore(structure, layout, StepCompute(structure, layout).aux, SERVERS)
    assert all(server.buckets for server in store.servers)
    return store


def train_on_servers(store, gradients):
    aux = tf.zeros([store.aux.num_logged + store.aux.num_states])

    @tf.function(autograph=False)
    def push(step_id, by_variable):
        packed = [
            gradient_of_piece(by_variable[bucket.members[0].variable_index], bucket)
            if not bucket.is_flat
            else tf.concat(
                [tf.reshape(by_variable[m.variable_index], [-1]) for m in bucket.members], 0
            )
            for bucket in store.layout.buckets
        ]
        pulled = store.pull()
        packed = [gradient * pulled.loss_scale for gradient in packed]
        store.push(step_id, packed, aux, pulled, worker=0)

    for index, step in enumerate(gradients):
        push(tf.constant(index, tf.int64), [tf.constant(g) for g in step])
    for optimizer in store.optimizers:
        optimizer.finalize()
    store.write_to_model()
    return store.structure.model


@pytest.mark.parametrize(
    ("name", "partition_bytes"),
    [
        *(pytest.param(n, 1 << 20, marks=[pytest.mark.slow] * (n in SLOW), id=n) for n in ALL),
        *(pytest.param(n, 40, id=f"{n}_in_pieces") for n in IN_PIECES),
    ],
)
def test_two_servers_equal_plain_keras(name, partition_bytes):
    plain, _ = built_model(ALL[name])
    gradients = random_gradients(plain)
    plain.optimizer.build(plain.trainable_variables)
    scale = plain.optimizer.loss_scale_factor or 1.0
    for step in gradients:
        scaled = [tf.constant(g * scale) for g in step]
        plain.optimizer.apply(scaled, plain.trainable_variables)
    plain.optimizer.finalize_variable_values(plain.trainable_variables)

    store = server_store(ALL[name], partition_bytes)
    has_pieces = any(b.members[0].rows is not None for b in store.layout.buckets)
    assert has_pieces == (partition_bytes == 40)
    model = train_on_servers(store, gradients)

    for mine, theirs in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(to_numpy(mine), to_numpy(theirs), atol=2e-6, err_msg=theirs.path)
    expected: dict[str, np.ndarray] = {}
    plain.optimizer.save_own_variables(expected)
    saved = dict(SlotMapping(model, store.optimizers).values(1))
    assert list(saved) == list(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(saved[key], value, atol=2e-6, err_msg=key)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (
            lambda: optimizers.Adam(global_clipnorm=1.0, gradient_accumulation_steps=2),
            "global_clipnorm with gradient_accumulation_steps",
        ),
        (
            lambda: optimizers.MultiOptimizer(
                optimizers.OptimizerMap(optimizers.SGD(global_clipnorm=1.0))
            ),
            "global_clipnorm inside a MultiOptimizer",
        ),
    ],
)
def test_what_needs_the_whole_gradient_is_refused_by_name(make, named):
    with pytest.raises(ConfigError, match=named):
        server_store(make)


def test_every_optimizer_of_keras_is_in_this_table():
    """A new optimizer of Keras fails here until somebody has looked at it."""
    known = {type(make()).__name__ for make in ALL.values()}
    public = {
        name
        for name in dir(optimizers)
        if isinstance(getattr(optimizers, name), type)
        and issubclass(getattr(optimizers, name), optimizers.Optimizer)
    }
    # LossScaleOptimizer: tests/ps/test_equals_keras.py.
    assert public - known == {"Optimizer", "LossScaleOptimizer"}
