"""Keeps a run's state: decides when to write a checkpoint, and what stands in it."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from kdist.distribute.loops.inner_loop import InnerLoop, OwnState
from kdist.errors import PeerLostError
from kdist.training.callback_bridge import CallbackBridge
from kdist.training.checkpoints.callback_state import Arrays, CallbackStates, State
from kdist.training.checkpoints.canonical import capture, prepare
from kdist.training.checkpoints.folder import CheckpointFolder, Written
from kdist.training.checkpoints.shards import SharedFolder
from kdist.training.checkpoints.writer import Writer
from kdist.training.plan import TrainingState
from kdist.training.report.facts import EpochFacts
from kdist.training.report.metrics_csv import Row, row_of

# Names of arrays in a checkpoint begin with these, beside those of `canonical`.
SUMS = "sums/"
CALLBACKS = "callbacks/"
OWN = "own/"
# After these, values may be out of reach, and waiting for them may take for ever.
_PEER_ERRORS = (
    PeerLostError,
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
)
_PEER_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When checkpoints are due; all `None`: never."""

    every_steps: int | None = None
    every_epochs: int | None = None
    every_seconds: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether there are any."""
        every = (self.every_steps, self.every_epochs, self.every_seconds)
        return any(each is not None for each in every)


class OnSaved(Protocol):
    """Told of each checkpoint, on the thread that wrote it."""

    def __call__(self, written: Written, *, step: int, pause_s: float, write_s: float) -> None:
        """Take in what was written, and how long training and the disk took for it."""
        ...


class CheckpointKeeper:
    """The keeper of the chief; see `Keeper` for when its methods are called."""

    def __init__(
        self,
        folder: CheckpointFolder,
        schedule: Schedule,
        *,
        model: keras.Model,
        loop: InnerLoop,
        bridge: CallbackBridge,
        state: Callable[[], TrainingState],
        facts: Mapping[str, Any],
        on_saved: OnSaved,
        own_state: OwnState | None = None,
        is_async: bool = True,
        copy_bytes: int = 0,
        shared: SharedFolder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Hold the parts.

        Args:
            folder: Where checkpoints go.
            schedule: When they are due.
            model: The built model.
            loop: The inner loop, with the store.
            bridge: The callbacks.
            state: Returns where training is.
            facts: What else a checkpoint says of the run; JSON can hold it.
            on_saved: Told of each checkpoint.
            own_state: What else steps change, if anything.
            is_async: Whether files are written while training goes on.
            copy_bytes: What a server may copy of its large tables for that.
            shared: How servers write tables themselves; without it they pass through the chief.
            clock: Seconds, monotonic.
        """
        self._folder = folder
        self._schedule = schedule
        self._model = model
        self._loop = loop
        self._bridge = bridge
        self._state = state
        self._facts = facts
        self._on_saved = on_saved
        self._own_state = own_state
        self._writer = Writer(is_async=is_async)
        self._copy_bytes = copy_bytes if is_async else 0
        self._shared = shared
        self._clock = clock
        self._last_s = clock()
        self._last_saved: Mapping[str, Any] | None = None
        self._is_cut = False
        self._before_end: tuple[Mapping[str, Any], tuple[list[State], Arrays]] | None = None
        self.rows: list[Row] = []
        self.callbacks: CallbackStates | None = None

    def go_on_after(self, rows: list[Row], state: TrainingState) -> None:
        """Begin with the rows of the epochs that have ended, at a state that has been saved."""
        self.rows = rows
        self._last_saved = state.as_position()

    def begin(self) -> None:
        """Look at the callbacks, once they have heard that training begins."""
        self.callbacks = CallbackStates(self._bridge.all_callbacks)
        if self._schedule.is_on:
            prepare(self._model, self._loop.store, copy_bytes=self._copy_bytes)
        self._last_s = self._clock()

    def after_stretch(self) -> None:
        """Save if steps or time say so."""
        self._writer.check()
        every = self._schedule.every_steps
        if (every and self._state().batches_seen % every == 0) or self._is_time():
            self._save()

    def before_epoch_end(self) -> None:
        """Note where callbacks are, in case that one of them fails."""
        if self._schedule.is_on:
            self._before_end = (self._state().as_position(), self._captured_callbacks())

    def after_epoch(self, facts: EpochFacts) -> None:
        """Save if epochs, steps or time say so."""
        self._before_end = None
        row = row_of(facts)
        self.rows.append(row)
        self._writer.check()
        steps, epochs = self._schedule.every_steps, self._schedule.every_epochs
        is_due = bool(epochs and facts.epoch % epochs == 0)
        is_due = is_due or bool(steps and facts.batches_seen % steps == 0)
        if is_due or self._is_time():
            self._save(epoch_row=row)

    def cut(self) -> None:
        """Save the state inside of the epoch, before its end is made of what there is."""
        self._is_cut = True
        if self._schedule.is_on:
            position, callbacks = self._before_end or (None, None)
            self._save(position=position, callbacks=callbacks)

    def at_end(self) -> None:
        """Save the last state, unless it was, and wait for the files."""
        is_new = self._state().as_position() != self._last_saved
        if self._schedule.is_on and is_new and not self._is_cut:
            row = self.rows[-1] if self.rows else None
            self._save(epoch_row=row)
        self._writer.wait()

    def after_failure(self, error: Exception) -> None:
        """Save where training was before the error, if values can be had at all; never raises."""
        with contextlib.suppress(Exception):
            if self._schedule.is_on and self.callbacks and not isinstance(error, _PEER_ERRORS):
                position, callbacks = self._before_end or (
                    self._state().as_position(),
                    self._captured_callbacks(),
                )
                if position != self._last_saved:
                    self._save(position=position, callbacks=callbacks)
            # What is being written may come from a server that does not answer any more.
            self._writer.wait(_PEER_WAIT_S if isinstance(error, _PEER_ERRORS) else None)

    def close(self) -> None:
        """Wait for what is being written, after an error, too; never raises."""
        with contextlib.suppress(Exception):
            self._writer.wait()

    def _is_time(self) -> bool:
        every = self._schedule.every_seconds
        return every is not None and self._clock() - self._last_s >= every

    def _captured_callbacks(self) -> tuple[list[State], Arrays]:
        assert self.callbacks is not None
        return self.callbacks.capture()

    def _save(
        self,
        *,
        epoch_row: Row | None = None,
        position: Mapping[str, Any] | None = None,
        callbacks: tuple[list[State], Arrays] | None = None,
    ) -> None:
        started_s = self._clock()
        self._writer.wait()
        position = position or self._state().as_position()
        states, found = callbacks or self._captured_callbacks()
        callback_arrays = {name: np.array(value) for name, value in found.items()}
        values = capture(
            self._model, self._loop.store, copy_bytes=self._copy_bytes, shared=self._shared
        )
        sums = self._loop.capture_sums() if position["step_in_epoch"] else {}
        own = self._own_state.capture_own() if self._own_state is not None else {}
        state = {
            "position": position,
            "rows": list(self.rows),
            "epoch_row": epoch_row,
            "callbacks": states,
            "stop_training": self._bridge.stop_training,
            **self._facts,
        }
        step = int(position["batches_seen"])
        pause_s = self._clock() - started_s

        def write() -> None:
            begun_s = self._clock()
            arrays = chain(
                values(), _named(SUMS, sums), _named(OWN, own), _named(CALLBACKS, callback_arrays)
            )
            try:
                written = self._folder.save(step, arrays, state)
            finally:
                with contextlib.suppress(tf.errors.OpError):  # A server may be lost.
                    values.release()
            write_s = self._clock() - begun_s
            is_waiting = values.is_live or not self._writer.is_async
            self._on_saved(
                written, step=step, pause_s=pause_s + write_s * is_waiting, write_s=write_s
            )

        self._last_saved = position
        self._writer.submit(write)
        if values.is_live:
            self._writer.wait()
        self._last_s = self._clock()


def _named(prefix: str, arrays: Mapping[str, Any]) -> Any:
    return ((f"{prefix}{name}", value) for name, value in arrays.items())
