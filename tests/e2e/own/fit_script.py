# A user's script: no main guard, lambdas and closures, everything defined right here.
import json
import os
import signal
import threading
import time

import keras
import numpy as np

import kdist

width = 16
rng = np.random.default_rng(0)
x = rng.random((320, 8), "float32")
y = (x.sum(axis=1) > 4).astype("int64")


class Gate(keras.layers.Layer):
    def call(self, inputs):
        return inputs * keras.ops.sigmoid(inputs)


def build():
    return keras.Sequential([keras.layers.Dense(width), Gate(), keras.layers.Dense(2)])


def make_data():
    return {"train": (x[64:], y[64:]), "validation": (x[:64], y[:64])}


class Count(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with open("epochs.txt", "a") as file:
            file.write(f"{epoch}\n")


loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
options = {"loss": loss, "metrics": ["accuracy"], "batch_size": 32}


def told(result):
    return {
        "status": result.status,
        "metrics": dict(result.metrics),
        "history": {name: len(values) for name, values in result.history.items()},
        "strategy": result.content["strategy"],
        "batches_seen": result.content["batches_seen"],
        "run_dir": str(result.run_dir),
    }


def raised(**changes):
    given = {"build_model": build, "make_data": make_data, "strategy": "single", **options}
    try:
        kdist.fit(**(given | changes))
    except Exception as error:
        return [type(error).__name__, str(error), type(error).__mro__[-3].__name__]
    return None


answers = {}
single = kdist.fit(
    lambda: build(),
    lambda: make_data(),
    strategy="single",
    epochs=2,
    optimizer=keras.optimizers.SGD(0.1),
    callbacks=[Count()],
    **options,
)
answers["single"] = told(single)
predicted = single.model.predict(x[:5], verbose=0)
answers["shape"] = list(predicted.shape)
ps = kdist.fit(build, make_data, strategy="ps", workers=2, ps=1, epochs=2, **options)
answers["ps"] = told(ps)


def own_loss(y_true, y_pred):
    return loss(y_true, y_pred) * 1.0


closed = kdist.fit(build, make_data, strategy="single", **{**options, "loss": own_loss})
answers["own loss"] = [told(closed), list(closed.model.predict(x[:5], verbose=0).shape)]
answers["no part"] = raised(make_data=lambda: {"test": 1})
answers["broken"] = raised(build_model=lambda: 1 / 0)
answers["late"] = raised(
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: [][0])]
)
answers["batch size"] = raised(batch_size=0)
answers["strategy"] = raised(strategy="sync")
answers["lock"] = raised(make_data=(lambda lock: lambda: lock)(__import__("threading").Lock()))
answers["folder"] = raised(run_dir=single.run_dir, config={"resume": "never"})


def interrupt_when_training(folder):
    while not os.path.exists(os.path.join(folder, "metrics.csv")):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt_when_training, args=["stopped"], daemon=True).start()
halted = kdist.fit(
    build, make_data, strategy="single", epochs=100_000, run_dir="stopped", **options
)
answers["stopped"] = told(halted)
print(json.dumps(answers))
