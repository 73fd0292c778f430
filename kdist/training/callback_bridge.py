"""Runs Keras callbacks unchanged: they see true weights, and what they write counts."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from kdist.distribute.loops.inner_loop import Store
from kdist.errors import ConfigError
from kdist.training.late_changes import LateChanges
from kdist.training.optimizer_view import OptimizerView
from kdist.training.peers import Peers

_History = keras.callbacks.History
# Callbacks of Keras that read logs only, never weights; a class of the user's derived from one of
# them may do anything.
_READ_LOGS_ONLY = (
    _History,
    keras.callbacks.CSVLogger,
    keras.callbacks.TerminateOnNaN,
    keras.callbacks.ProgbarLogger,
)
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Return whether a callback (its class, or a LambdaCallback itself) brings its own hook."""
    own = getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook)
    return own or hook in vars(callback)


def may_touch_weights(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Return whether a hook of a callback may read or write weights, or stop training."""
    if type(callback) is keras.callbacks.TensorBoard:
        return hook == "on_epoch_end"  # Histograms of the weights.
    return type(callback) not in _READ_LOGS_ONLY and any(
        overrides(callback, name) for name in _same_hook(hook)
    )


def _sets_model_up(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback of the user's own does something with the model it is given."""
    is_own = type(callback).set_model is not keras.callbacks.Callback.set_model
    return is_own and not type(callback).__module__.startswith("keras.")


class CallbackBridge:
    """The callbacks of a run. They run on the chief; every task calls the same hooks in turn.

    Around a hook that some callback overrides, the model is given the store's values, and what the
    callback changed (weights, learning rate, `stop_training`) goes back to the store of every task.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: keras.Model,
        store: Store,
        *,
        peers: Peers,
        epochs: int,
        steps_per_epoch: int,
    ):
        """Attach callbacks to a model; only the chief's are ever called.

        Args:
            callbacks: The user's callbacks, in order; the chief's count, others need none.
            model: The compiled model.
            store: Where the values live.
            peers: The other training tasks.
            epochs: What callbacks find in `params`.
            steps_per_epoch: Likewise.
        """
        _refuse_without_tables(callbacks, store)
        self._model = model
        self._store = store
        self._peers = peers
        self._callbacks = list(callbacks)
        self._late_changes: LateChanges | None = LateChanges(model)
        self.view = OptimizerView(model, store, follows_averages=bool(callbacks))
        self._list = keras.callbacks.CallbackList(
            self._callbacks if peers.is_chief else [],
            add_history=True,
            add_progbar=False,
            model=model,
            epochs=epochs,
            steps=steps_per_epoch,
            verbose=0,
        )
        model.stop_training = False
        self._hooks_with_weights = {
            hook for hook in _ALL_HOOKS if any(may_touch_weights(c, hook) for c in callbacks)
        }
        self.has_batch_hooks = any(overrides(c, hook) for c in callbacks for hook in _BATCH_HOOKS)
        self.weights_changed = False

    @property
    def all_callbacks(self) -> list[keras.callbacks.Callback]:
        """Return the callbacks that are called, Keras' own history included."""
        return list(self._list.callbacks)

    @property
    def stop_training(self) -> bool:
        """Return whether a callback asked to stop, on every task alike."""
        return bool(self._model.stop_training)

    def agree_on_stop(self, is_asked: bool) -> None:
        """Take on whether the chief's callbacks ask to stop, also where none of them sees weights.

        Args:
            is_asked: The chief's `stop_training`.
        """
        self._model.stop_training = is_asked

    def train_begin(self) -> None:
        """Let all tasks know which hooks the chief's callbacks have, and call `on_train_begin`."""
        shared = self._peers.agree(
            {
                "hooks_with_weights": sorted(self._hooks_with_weights),
                "has_batch_hooks": self.has_batch_hooks,
                "has_set_up": any(map(_sets_model_up, self._callbacks)),
            }
        )
        self._hooks_with_weights = set(shared["hooks_with_weights"])
        self.has_batch_hooks = shared["has_batch_hooks"]
        if shared["has_set_up"]:
            self._exchange()  # What `set_model` wrote, when the callbacks were attached.
        self._hook("on_train_begin")

    def epoch_begin(self, epoch: int) -> None:
        """Call `on_epoch_begin` with the epoch from zero."""
        if epoch:  # Of a run that goes on: they had no effect there, as in plain Keras.
            self._late_changes = None
        self._hook("on_epoch_begin", epoch)
        self._late_changes = None

    def batch_begin(self, step: int) -> None:
        """Call `on_train_batch_begin` with the batch of the epoch from zero."""
        self._hook("on_train_batch_begin", step)

    def batch_end(self, step: int, logs: Mapping[str, float]) -> None:
        """Call `on_train_batch_end`."""
        self._hook("on_train_batch_end", step, logs)

    def test_begin(self) -> None:
        """Call `on_test_begin`; the whole validation is one execution of many batches."""
        self._hook("on_test_begin")
        self._hook("on_test_batch_begin", 0)

    def test_end(self, last_batch: int, logs: Mapping[str, float]) -> None:
        """Call `on_test_end`."""
        self._hook("on_test_batch_end", last_batch, logs)
        self._hook("on_test_end", logs=logs)

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> dict[str, float]:
        """Call `on_epoch_end`; return the numbers of the logs as callbacks left them."""
        history = next(c.history for c in self.all_callbacks if isinstance(c, _History))
        before = {name: len(values) for name, values in history.items()}
        self._hook("on_epoch_end", epoch, logs)
        return {
            name: float(values[-1])
            for name, values in history.items()
            if len(values) > before.get(name, 0) and isinstance(values[-1], int | float | np.number)
        }

    def train_end(self, logs: Mapping[str, float]) -> None:
        """Call `on_train_end`."""
        self._hook("on_train_end", logs=logs)

    def _hook(self, name: str, *args: Any, logs: Mapping[str, float] | None = None) -> None:
        if len(args) == 2:
            args, logs = args[:1], args[1]
        touches_weights = name in self._hooks_with_weights
        if not self._peers.is_chief:
            if touches_weights:
                self._exchange()
            return
        if touches_weights:
            self._store.write_to_model()
        if touches_weights or name in ("on_epoch_begin", "on_epoch_end", "on_train_begin"):
            self.view.pull()
        with self.view.saves_state():
            getattr(self._list, name)(*args, logs=dict(logs) if logs is not None else None)
        if self._late_changes is not None and self._callbacks:
            self._late_changes.refuse()
        if touches_weights:
            self._exchange()

    def _exchange(self) -> None:
        """Let all tasks take over what the chief's callbacks changed."""
        if not self._peers.is_chief:
            self._follow(self._peers.agree({}))
            return
        changed = self._store.read_from_model()
        has_counted = self.view.push()
        self.weights_changed |= changed
        self._follow(
            self._peers.agree(
                {
                    "weights": changed,
                    "rates": self.view.rates,
                    "counts": self.view.counts if has_counted else None,
                    "stop_training": self.stop_training,
                }
            )
        )

    def _follow(self, decision: Mapping[str, Any]) -> None:
        if decision["weights"]:
            self._store.take_from_chief()
            self.weights_changed = True
        if self._peers.is_chief:
            return
        self.view.set(decision["rates"], decision["counts"])
        self._model.stop_training = decision["stop_training"]


_ALL_HOOKS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_test_end",
    "on_epoch_end",
    "on_train_end",
)


def _refuse_without_tables(callbacks: Sequence[keras.callbacks.Callback], store: Store) -> None:
    """Refuse callbacks that may touch weights where the chief does not hold all of them."""
    tables = store.kept_tables
    readers = [
        callback
        for callback in callbacks
        if _sets_model_up(callback) or any(may_touch_weights(callback, h) for h in _ALL_HOOKS)
    ]
    if tables and readers:
        raise ConfigError(
            "Callbacks that may read weights need the tables of strategy.sparse=rows on the chief. "
            f"Received: {type(readers[0]).__name__}, and tables above strategy.gather_bytes: "
            f"{', '.join(table.layer.name for table in tables)}. Leave the callback out, or raise "
            "strategy.gather_bytes."
        )


def _same_hook(hook: str) -> tuple[str, ...]:
    """Return the names under which a callback may override a hook."""
    return (hook, hook.replace("on_train_batch", "on_batch")) if "_train_batch" in hook else (hook,)
