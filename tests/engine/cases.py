"""Models and data of the exactness tests: each stresses what a split of a batch could break."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from .harness import labelled_rows

L = keras.layers
CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to train; `single` and `mirrored` hold settings of that mode only."""

    build: Callable[[], keras.Model]
    data: Mapping[str, Any]
    replicas: int = 2
    batch_size: int = 8
    class_weight: Mapping[int, float] | None = None
    single: Mapping[str, Any] = field(default_factory=dict)
    mirrored: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-5
    callbacks: Callable[[], list] = list


def sgd(**options):
    return keras.optimizers.SGD(0.1, momentum=0.9, **options)


def adam(**options):
    return keras.optimizers.Adam(0.01, **options)


X, Y = labelled_rows()
ROWS = {"train": (X, Y), "validation": (X[:11], Y[:11])}
LOGITS = CROSSENTROPY(from_logits=True)


def dense(optimizer=sgd, *, loss=LOGITS, metrics=("accuracy",), before=(), compiled=None, **first):
    def build():
        layers = [layer() for layer in before]
        model = keras.Sequential(
            [keras.Input((6,)), L.Dense(8, activation="tanh", **first), *layers, L.Dense(3)]
        )
        model.compile(
            optimizer(),
            loss=loss() if isinstance(loss, type) else loss,
            metrics=list(metrics),
            **(compiled or {}),
        )
        return model

    return build


def constrained():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(8, activation="tanh", kernel_constraint=keras.constraints.MaxNorm(0.5)),
            L.Dense(5, activation="relu", kernel_constraint=keras.constraints.UnitNorm()),
            L.Dense(3, bias_constraint=keras.constraints.NonNeg()),
        ]
    )
    model.compile(adam(), loss=LOGITS)
    return model


def conv():
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            L.Conv2D(4, 3, activation="relu"),
            L.BatchNormalization(synchronized=True),
            L.MaxPooling2D(),
            L.Flatten(),
            L.Dense(3),
        ]
    )
    model.compile(adam(), loss=LOGITS, metrics=["accuracy"])
    return model


def images(num_rows):
    x = np.random.default_rng(3).normal(size=(num_rows, 6, 6, 1)).astype("float32")
    return x, (np.arange(num_rows) % 3).astype("int32")


class MeanActivity(L.Layer):
    """Adds the batch mean of the squared activations to the loss."""

    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


def tokens(num_rows=21, length=7):
    rng = np.random.default_rng(5)
    x = rng.integers(1, 9, size=(num_rows, length))
    for row, valid in enumerate(rng.integers(1, length + 1, size=num_rows)):
        x[row, valid:] = 0
    return x.astype("int32"), (x % 4).astype("int32")


def tagger(loss, metrics=("accuracy",)):
    def build():
        model = keras.Sequential(
            [
                keras.Input((7,), dtype="int32"),
                L.Embedding(9, 5, mask_zero=True),
                L.LSTM(6, return_sequences=True),
                L.Dense(4),
            ]
        )
        model.compile(adam(), loss=loss, metrics=list(metrics))
        return model

    return build


def classify_sequences():
    model = keras.Sequential(
        [keras.Input((7,), dtype="int32"), L.Embedding(9, 5, mask_zero=True), L.LSTM(6), L.Dense(4)]
    )
    model.compile(sgd(), loss=LOGITS)
    return model


def heads(**compiled):
    def build():
        a, b = keras.Input((6,), name="a"), keras.Input((2,), name="b")
        shared = L.Dense(4, activation="tanh", name="shared")
        inner = keras.Sequential([keras.Input((4,)), L.Dense(4), L.Dense(4)], name="inner")
        h = L.concatenate([inner(shared(a)), inner(inner(shared(a))), shared(-a), b])
        model = keras.Model(
            {"a": a, "b": b},
            {"label": L.Dense(3, name="label")(h), "value": L.Dense(1, name="value")(h)},
        )
        options = {
            "loss": {"label": CROSSENTROPY(from_logits=True), "value": "mse"},
            "loss_weights": {"label": 0.7, "value": 2.0},
            "metrics": {"label": ["accuracy"], "value": ["mae"]},
            **compiled,
        }
        model.compile(adam(), **options)
        return model

    return build


HEADS_X = {"a": X, "b": X[:, :2] * 2}
HEADS_Y = {"label": Y, "value": X[:, :1] - X[:, 1:2]}


def attention():
    x = keras.Input((7,), dtype="int32")
    h = L.Embedding(9, 8)(x)
    h = L.LayerNormalization()(h + L.MultiHeadAttention(2, 4)(h, h))
    h = L.GlobalAveragePooling1D()(L.GRU(5, return_sequences=True)(h))
    model = keras.Model(x, L.Dense(4)(h))
    model.compile(adam(), loss=LOGITS)
    return model


class WithTraining(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = L.Dense(8, activation="relu")
        self.norm = L.BatchNormalization(synchronized=True)
        self.last = L.Dense(3)

    def call(self, x, training=False):
        return self.last(self.norm(self.first(x), training=training))


class WithoutTraining(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = L.Dense(8, activation="relu")
        self.last = L.Dense(3)

    def call(self, x):
        return self.last(self.first(x))


class OwnLoss(keras.Model):
    """Computes a mean over rows of its own, beside the compiled loss."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        own = keras.ops.mean(keras.ops.square(y_pred))
        compiled = super().compute_loss(x, y, y_pred, sample_weight, training=training)
        return compiled + 0.1 * own


def compiled_of(make, optimizer=adam):
    def build():
        model = make()
        model.compile(optimizer(), loss=LOGITS, metrics=["accuracy"])
        return model

    return build


def own_loss():
    x = keras.Input((6,))
    return OwnLoss(x, L.Dense(3)(L.Dense(5, activation="relu")(x)))


def half_precision():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(8, activation="relu", dtype="mixed_float16"),
            L.Dense(3, dtype="mixed_float16"),
            L.Activation("linear", dtype="float32"),
        ]
    )
    model.compile(keras.optimizers.LossScaleOptimizer(sgd(), dynamic_growth_steps=4), loss=LOGITS)
    return model


def binary():
    model = keras.Sequential(
        [keras.Input((6,)), L.Dense(5, activation="relu"), L.Dense(1, activation="sigmoid")]
    )
    model.compile(
        adam(),
        loss="binary_crossentropy",
        metrics=[
            keras.metrics.AUC(name="auc"),
            keras.metrics.F1Score(threshold=0.5, name="f1"),
            keras.metrics.R2Score(name="r2"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.RootMeanSquaredError(name="rmse"),
        ],
        weighted_metrics=["mae"],
    )
    return model


def excluded_decay():
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.3)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def decaying():
    return keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.2, 3, 0.7), momentum=0.9
    )


def by_path():
    optimizers = keras.optimizers.OptimizerMap(adam(), {".*kernel": sgd(clipnorm=0.5)})
    return keras.optimizers.MultiOptimizer(optimizers)


WEIGHTS = np.linspace(0.1, 3.0, len(X)).astype("float32")
BINARY_Y = (Y > 0).astype("float32")[:, None]
TOKENS, TAGS = tokens()
TAG_WEIGHTS = np.random.default_rng(1).uniform(0.2, 2, size=TAGS.shape).astype("float32")

CASES: dict[str, Case] = {
    "l2_last_batch_of_one": Case(
        build=dense(
            before=[lambda: L.BatchNormalization(synchronized=True)],
            kernel_regularizer=keras.regularizers.L2(0.01),
        ),
        data=ROWS,
        replicas=3,
        single={"steps_per_execution": 4},
        mirrored={"steps_per_execution": 2},
    ),
    "first_batch_uneven": Case(
        build=dense(adam), data=ROWS, batch_size=7, single={"jit_compile": True}
    ),
    "fewer_rows_than_replicas_conv": Case(
        build=conv, data={"train": images(10)}, replicas=3, mirrored={"steps_per_execution": 4}
    ),
    "jit_and_chunks": Case(
        build=dense(adam, kernel_regularizer="l2"),
        data=ROWS,
        replicas=3,
        mirrored={"jit_compile": True, "steps_per_execution": 4},
    ),
    "add_loss": Case(
        build=dense(before=[MeanActivity], activity_regularizer="l2"), data=ROWS, batch_size=9
    ),
    "constraints": Case(build=constrained, data=ROWS, batch_size=9, replicas=2),
    "sample_weights": Case(
        build=dense(adam, compiled={"weighted_metrics": ["accuracy"]}),
        data={"train": (X, Y, WEIGHTS), "validation": (X[:9], Y[:9], WEIGHTS[:9])},
        replicas=3,
    ),
    "class_weights": Case(
        build=dense(), data=ROWS, class_weight={0: 0.5, 1: 2.0, 2: 3.0}, replicas=2
    ),
    "masked_steps": Case(
        build=tagger(CROSSENTROPY(from_logits=True)),
        data={"train": (TOKENS, TAGS), "validation": (TOKENS[:9], TAGS[:9])},
        replicas=3,
    ),
    "masked_steps_weighted": Case(
        build=tagger(CROSSENTROPY(from_logits=True)),
        data={"train": (TOKENS, TAGS, TAG_WEIGHTS)},
        replicas=2,
    ),
    "masked_steps_weighted_mean": Case(
        build=tagger(CROSSENTROPY(from_logits=True, reduction="mean_with_sample_weight")),
        data={"train": (TOKENS, TAGS, TAG_WEIGHTS)},
        replicas=2,
        mirrored={"steps_per_execution": 3},
    ),
    "embedding_jit": Case(
        build=tagger(LOGITS),
        data={"train": (TOKENS, TAGS)},
        single={"jit_compile": True},
        mirrored={"jit_compile": True},
    ),
    "masked_sequences": Case(
        build=classify_sequences, data={"train": (TOKENS, TAGS[:, 0])}, replicas=2
    ),
    "reduction_sum": Case(
        build=dense(
            lambda: keras.optimizers.SGD(0.01), loss=CROSSENTROPY(from_logits=True, reduction="sum")
        ),
        data={"train": (X, Y, WEIGHTS)},
        replicas=3,
    ),
    "reduction_weighted_mean": Case(
        build=dense(loss=CROSSENTROPY(from_logits=True, reduction="mean_with_sample_weight")),
        data={"train": (X, Y, WEIGHTS)},
        replicas=3,
    ),
    "reduction_none": Case(
        build=dense(
            lambda: keras.optimizers.SGD(0.01), loss=CROSSENTROPY(from_logits=True, reduction=None)
        ),
        data={"train": (X, Y)},
        replicas=2,
    ),
    "several_outputs": Case(
        build=heads(),
        data={"train": (HEADS_X, HEADS_Y), "validation": (HEADS_X, HEADS_Y)},
        replicas=3,
        mirrored={"steps_per_execution": 4},
    ),
    "several_outputs_weighted": Case(
        build=heads(
            loss={
                "label": CROSSENTROPY(from_logits=True, reduction="mean_with_sample_weight"),
                "value": keras.losses.MeanSquaredError(reduction="sum"),
            }
        ),
        data={"train": (HEADS_X, HEADS_Y, {"label": WEIGHTS, "value": WEIGHTS[::-1].copy()})},
        replicas=2,
        tolerance=3e-5,
    ),
    "clipnorm": Case(build=dense(lambda: sgd(clipnorm=0.02)), data=ROWS, replicas=3),
    "clipvalue": Case(build=dense(lambda: adam(clipvalue=0.01)), data=ROWS, replicas=2),
    "global_clipnorm": Case(build=dense(lambda: sgd(global_clipnorm=0.05)), data=ROWS, replicas=3),
    "accumulation": Case(
        build=dense(lambda: adam(gradient_accumulation_steps=3)),
        data=ROWS,
        replicas=2,
        single={"steps_per_execution": 4},
    ),
    "average": Case(
        build=dense(lambda: sgd(use_ema=True, ema_momentum=0.8)), data=ROWS, replicas=3
    ),
    "average_overwrites": Case(
        build=dense(lambda: adam(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3)),
        data=ROWS,
        replicas=2,
        mirrored={"steps_per_execution": 4},
    ),
    "schedule": Case(build=dense(decaying), data=ROWS, replicas=2),
    "two_optimizers": Case(build=dense(by_path), data=ROWS, replicas=2),
    "decay_with_exclusions": Case(build=dense(excluded_decay), data=ROWS, replicas=3),
    "metrics": Case(
        build=binary,
        data={"train": (X, BINARY_Y), "validation": (X[:11], BINARY_Y[:11])},
        replicas=3,
        batch_size=9,
    ),
    "attention": Case(build=attention, data={"train": (TOKENS, TAGS[:, 0])}, replicas=2),
    "subclassed": Case(build=compiled_of(WithTraining), data=ROWS, replicas=3, batch_size=16),
    "subclassed_without_training": Case(
        build=compiled_of(WithoutTraining, sgd), data=ROWS, replicas=2
    ),
    "own_compute_loss": Case(build=compiled_of(own_loss, sgd), data=ROWS, replicas=3),
    "mixed_float16": Case(build=half_precision, data=ROWS, replicas=2, tolerance=2e-3),
}
