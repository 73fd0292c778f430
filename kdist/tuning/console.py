"""The live table of trials, or a line for each event where nobody watches."""

import sys
import time
from collections.abc import Callable
from typing import IO, TextIO, cast

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kdist.launch.request import Console
from kdist.training.report.stream import TolerantStream
from kdist.tuning.objective import Objective
from kdist.tuning.table import Line, line_of, values_text
from kdist.tuning.texts import summary_text
from kdist.tuning.trials import FAILED, RUNNING, SearchState, Trial

_INTERVAL_S = 0.5
_MAX_ROWS = 16
_STYLES = {"completed": "green", "pruned": "yellow", "failed": "red", "running": "cyan"}


class SearchConsole:
    """Shows a search. Used from one thread; nothing here raises because of the stream."""

    def __init__(
        self,
        console: Console,
        state: SearchState,
        objective: Objective,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Show on `stream`, or stdout, what suits `console`."""
        self._stream = TolerantStream(stream or sys.stdout)
        self._state = state
        self._objective = objective
        self._clock = clock
        self._shown: dict[str, str] = {}
        self._live = _LiveTable(self._stream, console) if console.is_terminal else None
        self._drawn_at_s = 0.0

    def say(self, text: str) -> None:
        """Show a line that stays."""
        if self._live is not None:
            self._live.close()
        print(text, file=cast(IO[str], self._stream), flush=True)

    def changed(self, trial: Trial) -> None:
        """Show that a trial began, failed an attempt, or ended."""
        stage = f"{trial.status} {len(trial.failures)} {bool(trial.executions)}"
        before = self._shown.get(trial.id)
        if stage == before:
            return
        self._shown[trial.id] = stage
        if self._live is None or trial.status == FAILED:
            for line in _event_lines(trial, self._line(trial), has_begun=before is not None):
                self.say(line)

    def tick(self) -> None:
        """Draw the table anew, if there is a terminal and it is time."""
        if self._live is not None and self._clock() - self._drawn_at_s >= _INTERVAL_S:
            self._drawn_at_s = self._clock()
            lines = [self._line(trial) for trial in self._state.trials.values()]
            self._live.draw(_chosen(lines), summary_text(self._state, self._objective))

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.close()

    def final_table(self) -> None:
        """Leave the table of all trials on the terminal."""
        lines = [self._line(trial) for trial in self._state.trials.values()]
        if self._live is not None:
            self._live.leave(lines)

    def _line(self, trial: Trial) -> Line:
        return line_of(trial, self._state, self._objective, self._clock())


def _event_lines(trial: Trial, line: Line, *, has_begun: bool) -> list[str]:
    if trial.status == RUNNING and trial.failures and not trial.executions:
        return [f"trial {trial.id}  failed, to be run again: {trial.failures[-1]}"]
    if trial.status == RUNNING:
        return [] if has_begun else [f"trial {trial.id}  {values_text(trial.values)}"]
    if trial.status == FAILED:
        return [f"trial {trial.id}  failed: {trial.reason}"]
    best = "  best so far" if line.is_best else ""
    reason = f" ({trial.reason})" if trial.reason else ""
    return [
        f"trial {trial.id}  {trial.status}{reason}  {line.objective} at epoch {trial.best_epoch}  "
        f"{line.epoch} epochs  {line.seconds}{best}"
    ]


def _chosen(lines: list[Line]) -> list[Line]:
    """Return the lines that a terminal has room for: what runs, the best, and the latest."""
    if len(lines) <= _MAX_ROWS:
        return lines
    needed = [line for line in lines if line.status == RUNNING or line.is_best]
    others = [line for line in lines if line not in needed][-max(0, _MAX_ROWS - len(needed)) :]
    return [line for line in lines if line in needed or line in others]


class _SteadyConsole(RichConsole):
    """Leaves the cursor visible: a killed task could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        """Do nothing."""
        return False


class _LiveTable:
    """Draws the table on a terminal, through a stream that may be a pipe to it."""

    def __init__(self, stream: TolerantStream, console: Console) -> None:
        self._console = _SteadyConsole(
            file=cast(IO[str], stream),
            force_terminal=True,
            color_system="standard" if console.color else None,
            no_color=not console.color,
            width=max(40, console.width),
            height=_MAX_ROWS + 8,
            legacy_windows=False,
            markup=False,
            emoji=False,
            highlight=False,
        )
        self._live: Live | None = None

    def draw(self, lines: list[Line], summary: str) -> None:
        """Draw lines and a summary in the place of what was drawn before."""
        # The empty line below makes the frame end with a line break.
        frame = Group(_table(lines), Text(summary, style="bold"), Text(""))
        if self._live is None:
            self._live = Live(frame, console=self._console, auto_refresh=False, transient=True)
            self._live.start(refresh=True)
        else:
            self._live.update(frame, refresh=True)

    def leave(self, lines: list[Line]) -> None:
        """Draw lines that stay."""
        self.close()
        self._console.print(_table(lines))

    def close(self) -> None:
        """Remove what was drawn."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()


def _table(lines: list[Line]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("trial", "status", "objective", "epoch", "time", "values"):
        table.add_column(heading, no_wrap=heading != "values")
    for line in lines:
        style = "bold green" if line.is_best else _STYLES.get(line.status, "")
        cells = (line.id, line.status, line.objective, line.epoch, line.seconds, line.values)
        table.add_row(*(Text(cell, style=style) for cell in cells))
    return table
