"""The chief's console: what the user sees from the opening panel to the closing table."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, TextIO

from kdist.training.report.facts import EpochFacts, OpeningFacts, ProgressFacts, Terminal
from kdist.training.report.plain import PlainView
from kdist.training.report.stream import TolerantStream
from kdist.training.report.terminal import TerminalView


class View(Protocol):
    """How the console looks; one for terminals and one for pipes."""

    progress_interval_s: float

    def opening(self, facts: OpeningFacts) -> None:
        """Show what is known before the first step."""
        ...

    def status(self, text: str) -> None:
        """Show a passing state."""
        ...

    def progress(self, facts: ProgressFacts) -> None:
        """Show where training is."""
        ...

    def epoch(self, facts: EpochFacts, *, epochs: int | None, num_steps: int) -> None:
        """Show what an epoch brought."""
        ...

    def closing(self, result: Mapping[str, Any], history: Mapping[int, EpochFacts]) -> None:
        """Show how the run ended."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class ConsoleReport:
    """Shows a run on the console. Used by the chief only, from one thread.

    Leave it with `close()` (or as a context manager) whatever happens, so that the terminal is as
    before. Nothing here raises because of the stream: a lost reader only ends the showing.
    """

    def __init__(
        self, console: Terminal, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Show on `stream` what suits `console`; nothing is written yet."""
        tolerant = TolerantStream(stream)
        self._view: View = (
            TerminalView(tolerant, width=console.width, color=console.color)
            if console.is_terminal
            else PlainView(tolerant)
        )
        self._clock = clock
        self._shown_at_s = clock()
        self._epochs: int | None = None
        self._batches_seen = 0
        self._history: dict[int, EpochFacts] = {}

    def __enter__(self) -> "ConsoleReport":
        """Return this report."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        self.close()

    def go_on_after(self, batches_seen: int) -> None:
        """Let the next epoch be one that begins after so many batches."""
        self._batches_seen = batches_seen

    def opening(self, facts: OpeningFacts) -> None:
        """Show what is known before the first step."""
        self._epochs = facts.epochs
        self._view.opening(facts)
        self._shown_at_s = self._clock()

    def status(self, text: str) -> None:
        """Show a passing state, such as `validating`, where somebody watches."""
        self._view.status(text)

    @property
    def is_progress_due(self) -> bool:
        """Whether `progress` would show something now; reading metrics costs time, so ask first."""
        return self._clock() - self._shown_at_s >= self._view.progress_interval_s

    def progress(self, facts: ProgressFacts) -> None:
        """Show where training is, unless the last showing is only a moment ago."""
        if self.is_progress_due:
            self._view.progress(facts)
            self._shown_at_s = self._clock()

    def epoch(self, facts: EpochFacts) -> None:
        """Show what an epoch brought. Call it once an epoch, after validation."""
        num_steps = facts.batches_seen - self._batches_seen
        self._batches_seen = facts.batches_seen
        self._history[facts.epoch] = facts
        self._view.epoch(facts, epochs=self._epochs, num_steps=num_steps)
        self._shown_at_s = self._clock()

    def closing(self, result: Mapping[str, Any]) -> None:
        """Show how the run ended.

        Args:
            result: The content of result.json.
        """
        self._view.closing(result, self._history)

    def close(self) -> None:
        """Leave the terminal as it was. May be called twice."""
        self._view.close()
