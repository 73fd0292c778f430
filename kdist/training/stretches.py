"""How many steps to run before looking up: long enough to be fast, short enough to react."""

TARGET_S = 1.0
# A stretch ends when its last call does, and workers that are done before have nothing to do. So
# where calls take long, a stretch has this many on each worker, as long as it stays this short.
CALLS_A_STRETCH = 100
LONGEST_S = 10.0


class Pace:
    """The length of the next stretch of steps, a multiple of the steps of one call."""

    def __init__(self, steps_per_call: int, calls_at_once: int, has_batch_hooks: bool):
        """Begin with one call on each worker.

        Args:
            steps_per_call: Steps in one call of the runtime.
            calls_at_once: Calls that run side by side.
            has_batch_hooks: Whether a callback wants to be called after every call.
        """
        self._unit = steps_per_call * calls_at_once
        self._waits_at_end = calls_at_once > 1
        self._is_fixed = has_batch_hooks
        self.next_steps = self._unit

    def observe(self, num_steps: int, elapsed_s: float) -> None:
        """Aim at `TARGET_S`, or `CALLS_A_STRETCH`; at most four times as long as the last one."""
        if self._is_fixed:
            return
        target_s = TARGET_S
        if self._waits_at_end:
            calls_s = CALLS_A_STRETCH * elapsed_s * self._unit / max(num_steps, 1)
            target_s = max(TARGET_S, min(LONGEST_S, calls_s))
        wanted = num_steps * target_s / max(elapsed_s, 1e-6)
        limited = min(wanted, 4.0 * max(num_steps, self._unit))
        self.next_steps = max(self._unit, int(limited) // self._unit * self._unit)
