"""The four modes of parameter servers: who refuses what, by name, before anything is trained.

No cluster is needed: everything is built as a task of the mode builds it, up to its session. What
none of these modes refuses is trained by tests/ps and tests/between_graph.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist import config as kdist_config
from kdist.assembly.building import Builder
from kdist.assembly.engine import make_engine
from kdist.cluster.traits import traits_of
from kdist.distribute.between_graph.graph import WorkerGraph
from kdist.distribute.between_graph.seat import Seat
from kdist.distribute.between_graph.turns import Shares
from kdist.distribute.data import num_steps
from kdist.distribute.servers.server_step import ServerStep
from kdist.distribute.shares import WorkerShare
from kdist.errors import ConfigError

from .cases import L, X, Y
from .test_refusals import OwnTrainStep, dice_like, sequential, stateful

MODES = {
    "in_graph async": ("in_graph", "async"),
    "in_graph sync": ("in_graph", "sync"),
    "between_graph async": ("between_graph", "async"),
    "between_graph sync": ("between_graph", "sync"),
}
ALL = tuple(MODES)
SYNC = tuple(mode for mode in ALL if mode.endswith("_graph sync"))
BETWEEN = tuple(mode for mode in ALL if mode.startswith("between"))
DATA = {"train": (X, Y)}
WORDS = np.array([["a"], ["b"], ["c"]] * 11)


def build_as(mode, build, data, **settings):
    """Build and check everything as a worker, or the chief, of a mode does; no session is opened.

    Two workers and two servers.
    """
    replication, update = MODES[mode]
    mode_of = {"name": "ps", "replication": replication, "update": update}
    config = kdist_config.load(
        {
            "data": {"batch_size": 8, "shuffle": False, "cache_bytes": 1},
            "strategy": {**mode_of, **settings.pop("strategy", {})},
            "cluster": {"workers": 2, "ps": 2},
            **settings,
        }
    )
    share = WorkerShare(worker_index=1, num_workers=2)
    traits = traits_of(*mode_of.values())
    builder = Builder(config, ())
    builder.use({"build_model": build, "make_data": lambda: data})
    sources = builder.data(share if traits.has_followers else WorkerShare())
    num_steps(sources.train, config.steps_per_epoch, key="data.train")

    def make_loop(structure, layout):
        options = {"jit_compile": config.jit_compile}
        if not traits.has_followers:
            spec = sources.train.element_spec
            return ServerStep(
                structure, layout, batch_spec=spec, scope=tf.Graph().as_default, **options
            )
        seat = Seat(
            share=share, target="", servers={}, device="/job:worker/replica:0/task:1/device:CPU:0"
        )
        return WorkerGraph(
            structure,
            layout,
            seat,
            source=sources.train,
            validation=None,
            steps_per_call=1,
            shares=Shares(2, 2, batch_size=8) if traits.aggregates else None,
            **options,
        )

    return make_engine(
        config,
        traits,
        tf.distribute.get_strategy(),
        builder.model(),
        sources.train,
        share=WorkerShare(),
        num_servers=2,
        num_workers=2,
        check_cluster=lambda: None,
        make_client_loop=make_loop,
    )


class CallsPython(L.Layer):
    """Doubles its inputs in Python."""

    def call(self, inputs):
        doubled = tf.py_function(lambda array: array * 2, [inputs], tf.float32)
        return tf.ensure_shape(doubled, inputs.shape)


class CountsInPython(keras.metrics.Mean):
    """A metric whose values NumPy computes."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        values = tf.numpy_function(lambda y: np.sign(y).sum(-1), [y_pred], tf.float32)
        return super().update_state(tf.ensure_shape(values, y_pred.shape[:1]))


def with_words(layer):
    def build():
        model = keras.Sequential([keras.Input((1,), dtype="string"), layer(), L.Dense(3)])
        model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return build


def lookup():
    return L.StringLookup(vocabulary=["a", "b"], output_mode="one_hot", name="words")


def vectorizer():
    layer = L.TextVectorization(output_mode="multi_hot", name="texts")
    layer.adapt(["a b", "c"])
    return layer


def endless():
    return tf.data.Dataset.from_tensor_slices((X, Y)).repeat()


def of_unknown_length():
    return tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: True)


def of_input_context(context):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)


def generator():
    yield X[:8], Y[:8]


def ragged():
    rows = tf.ragged.constant([[1.0, 2.0], [3.0], [1.0, 4.0, 2.0]] * 11)
    return tf.data.Dataset.from_tensor_slices((rows, Y))


def sparse():
    return tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(X), Y))


synchronized = sequential(lambda: L.BatchNormalization(synchronized=True))
PLAIN = sequential()
# What; the model; the data; the modes that refuse it; what their message says.
REFUSED = {
    "own train_step": (sequential(model_class=OwnTrainStep), DATA, ALL, "OwnTrainStep.*train_step"),
    "stateful RNN": (stateful, {"train": (X[:32, :, None], Y[:32])}, ALL, "memory|batch_shape"),
    "Python function in a layer": (sequential(CallsPython), DATA, ALL, "Python .*calls_python"),
    "Python function in a metric": (sequential(metrics=[CountsInPython]), DATA, ALL, "Python "),
    "generator": (PLAIN, {"train": generator()}, ALL, "Received: generator"),
    "data without end": (PLAIN, {"train": endless()}, ALL, "has no end.*steps_per_epoch"),
    "data of unknown length": (PLAIN, {"train": of_unknown_length()}, ALL, "size .* is not known"),
    "ragged data": (PLAIN, {"train": ragged()}, ALL, "must be a dense tensor.*Ragged"),
    "sparse data": (PLAIN, {"train": sparse()}, ALL, "must be a dense tensor.*Sparse"),
    "loss of the whole batch": (
        sequential(loss=dice_like, units=1),
        {"train": (X, (Y > 0).astype("float32"))},
        SYNC,
        "dice_like.*halves",
    ),
    "synchronized normalization": (synchronized, DATA, SYNC, "synchronized=True.*2 shares"),
    "StringLookup": (with_words(lookup), {"train": (WORDS, Y)}, BETWEEN, "Received: words"),
    "TextVectorization": (with_words(vectorizer), {"train": (WORDS, Y)}, BETWEEN[:1], "texts"),
    "function of InputContext": (
        PLAIN,
        {"train": of_input_context},
        ("between_graph sync",),
        "InputContext.*each worker's own",
    ),
}
SETTINGS = {"function of InputContext": {"steps_per_epoch": 4}}


@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name in REFUSED for mode in REFUSED[name][2]]
)
def test_refused_by_name(name, mode):
    build, data, _, pattern = REFUSED[name]
    with pytest.raises(ConfigError, match=pattern):
        build_as(mode, build, data, **SETTINGS.get(name, {}))
