"""How many steps a worker takes from the desk at once. Pure Python."""

# Steps of one ticket: few round trips to the desk, and not much to do again for who is lost.
TICKET_STEPS = 50
# Where steps take long, a ticket takes about this time: workers look up now and then. And where a
# call of the runtime takes longer than that, the last tickets have single steps: all workers end at
# about the same time.
TICKET_S, CALL_S = 2.0, 0.25


class TicketSize:
    """Adapts tickets to the speed of one worker."""

    def __init__(self, unit: int):
        """Know nothing of speed yet.

        Args:
            unit: Steps of the longest call of the runtime.
        """
        self._unit = unit
        self._step_s = 0.0

    def observe(self, num_steps: int, elapsed_s: float) -> None:
        """Take in how long a ticket took."""
        self._step_s = elapsed_s / num_steps

    @property
    def most(self) -> int:
        """Return the steps to take at most."""
        if not self._step_s:
            return TICKET_STEPS
        most = max(1, min(TICKET_STEPS, int(TICKET_S / self._step_s)))
        return most if most < self._unit else most // self._unit * self._unit

    @property
    def unit(self) -> int:
        """Return the steps to take at least, of which a ticket has a multiple."""
        return self._unit if self._unit * self._step_s <= CALL_S else 1
