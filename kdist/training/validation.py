"""Validation in stretches of batches, between which all tasks agree on whether to go on."""

import time
from collections.abc import Callable

from kdist.distribute.data.source import BatchSource
from kdist.distribute.loops.inner_loop import InnerLoop
from kdist.training.callback_bridge import CallbackBridge
from kdist.training.stretches import Pace


class Validation:
    """Evaluates the validation data. Every training task has one, and all call it alike."""

    def __init__(
        self,
        loop: InnerLoop,
        bridge: CallbackBridge,
        source: BatchSource,
        num_batches: int | None,
        *,
        agree_to_stop: Callable[[Pace], bool],
        on_begin: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        """Hold the parts.

        Args:
            loop: The inner loop of the mode.
            bridge: The callbacks.
            source: The validation data.
            num_batches: Batches to use, or `None` for all.
            agree_to_stop: Called on every task between two stretches, with the pace that all take
                on; returns whether all of them stop.
            on_begin: Called when an evaluation begins.
            clock: Seconds, monotonic.
        """
        self._loop = loop
        self._bridge = bridge
        self._source = source
        self._num_batches = num_batches
        self._agree_to_stop = agree_to_stop
        self._on_begin = on_begin
        self._clock = clock
        self._pace = Pace(steps_per_call=1, calls_at_once=1, has_batch_hooks=False)
        self._num_done, self._since_s = 0, 0.0
        self._is_abandoned = False

    def run(self) -> dict[str, float]:
        """Evaluate between the callbacks' test hooks; return `val_` logs, none if told to stop.

        The hooks come in pairs in any case, as a callback may lend the model other weights.
        """
        self._bridge.weights_changed = False
        self._bridge.test_begin()
        logs = self._sums_as_logs()
        num_batches = self._num_batches or self._source.batches_per_pass or 1
        last = self._num_done if self._is_abandoned else num_batches
        self._bridge.test_end(last - 1, logs)
        self._bridge.weights_changed = False
        return self._named(logs)

    def evaluate(self) -> dict[str, float]:
        """Evaluate without hooks; return `val_` logs, none if told to stop."""
        return self._named(self._sums_as_logs())

    def _sums_as_logs(self) -> dict[str, float]:
        self._on_begin()
        self._is_abandoned = False
        sums = self._loop.evaluate(self._source, self._num_batches, self._next_batches)
        return self._loop.logs.results(sums)

    def _named(self, logs: dict[str, float]) -> dict[str, float]:
        return {} if self._is_abandoned else {f"val_{name}": v for name, v in logs.items()}

    def _next_batches(self, num_done: int) -> int:
        if num_done:
            self._pace.observe(num_done - self._num_done, self._clock() - self._since_s)
            self._is_abandoned = self._agree_to_stop(self._pace)
        self._num_done, self._since_s = num_done, self._clock()
        return 0 if self._is_abandoned else self._pace.next_steps
