"""How many steps the chief has dispatched ahead of its workers. Pure Python.

Few enough that training can stop soon, and enough that no worker waits for the chief to look up.
"""

AHEAD_S = 1.0
# Rounds of calls on all workers that are dispatched beside those that run, at least.
ROUNDS_AHEAD = 3


class Supply:
    """Decides how far to dispatch; remembers how fast workers are."""

    def __init__(self, num_workers: int):
        """Know nothing of speed yet."""
        self._num_workers = num_workers
        self._steps_per_s = 0.0

    def wanted(self, num_applied: int, elapsed_s: float, steps_per_call: int) -> int:
        """Return how many steps of a stretch should be dispatched by now.

        Args:
            num_applied: Its steps that are done.
            elapsed_s: Seconds since it began.
            steps_per_call: Steps of a dispatch.
        """
        if num_applied and elapsed_s:
            self._steps_per_s = num_applied / elapsed_s
        calls = (1 + ROUNDS_AHEAD) * self._num_workers
        ahead = max(calls * steps_per_call, self._steps_per_s * AHEAD_S)
        return int(num_applied + ahead) // steps_per_call * steps_per_call
