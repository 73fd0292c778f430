"""How long a trial has run, out of the moments that a journal tells. Pure."""

from dataclasses import dataclass


@dataclass
class WorkTime:
    """The seconds of all stretches in which something ran; the pauses between them do not count.

    Attributes:
        ended_s: Seconds of the stretches that are over.
        since_s: When the one that goes on began; `None` while nothing runs.
        heard_s: When it last gave a sign of life.
    """

    ended_s: float = 0.0
    since_s: float | None = None
    heard_s: float = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether anything ran so far."""
        return self.since_s is not None or self.ended_s > 0

    def begin(self, at_s: float) -> None:
        """Begin a stretch, or go on with the one there is."""
        self.since_s = at_s if self.since_s is None else self.since_s
        self.heard_s = at_s

    def hear(self, at_s: float) -> None:
        """Note a sign of life."""
        self.heard_s = at_s

    def pause(self, at_s: float | None = None) -> None:
        """End the stretch, if there is one: at that time, or with the last sign of life."""
        if self.since_s is not None:
            self.ended_s += (self.heard_s if at_s is None else at_s) - self.since_s
            self.since_s = None

    def until(self, now_s: float) -> float:
        """Return the seconds until now."""
        running_s = 0.0 if self.since_s is None else max(0.0, now_s - self.since_s)
        return self.ended_s + running_s
