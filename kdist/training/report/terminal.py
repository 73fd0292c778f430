"""The console where somebody watches: a panel, a live bar, a table; drawn with rich."""

from collections.abc import Mapping, Sequence
from typing import IO, Any, cast

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kdist.training.report.closing_text import closing_columns, closing_lines, closing_title
from kdist.training.report.facts import EpochFacts, OpeningFacts, ProgressFacts
from kdist.training.report.formats import metric_text, printable
from kdist.training.report.stream import TolerantStream
from kdist.training.report.text import (
    Line,
    epoch_parts,
    metric_texts,
    opening_lines,
    progress_head,
    progress_tail,
    wrapped,
)

_MIN_BAR_WIDTH, _MAX_BAR_WIDTH = 10, 40
_STATUS_STYLES = {"completed": "bold green", "stopped": "bold yellow", "failed": "bold red"}


class _SteadyConsole(Console):
    """Leaves the cursor visible: a killed task could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        """Do nothing."""
        return False


class TerminalView:
    """Draws for a terminal of `width` columns, through a stream that may be a pipe to it.

    The bar is drawn by whoever calls, never by a thread. Each frame ends with a line break, so it
    also passes through a pump that forwards whole lines. While the bar stands, `sys.stdout` and
    `sys.stderr` print above it.
    """

    progress_interval_s = 0.2

    def __init__(self, stream: TolerantStream, *, width: int, color: bool) -> None:
        """Draw on `stream`."""
        self._console = _SteadyConsole(
            file=cast(IO[str], stream),
            force_terminal=True,
            force_interactive=True,
            force_jupyter=False,
            color_system="standard" if color else None,
            no_color=not color,
            width=max(20, width),
            height=25,
            legacy_windows=False,
            markup=False,
            emoji=False,
            highlight=False,
        )
        self._live: Live | None = None

    def opening(self, facts: OpeningFacts) -> None:
        """Draw the opening panel."""
        self._print(
            Panel(_grid(opening_lines(facts)), title="kdist", title_align="left", expand=False)
        )

    def status(self, text: str) -> None:
        """Show a passing state in the place of the bar, such as `validating`."""
        self._draw(Text(printable(text), style="dim", no_wrap=True, overflow="ellipsis"))

    def progress(self, facts: ProgressFacts) -> None:
        """Draw the bar anew."""
        self._draw(progress_renderable(facts, self._console.width))

    def epoch(self, facts: EpochFacts, *, epochs: int | None, num_steps: int) -> None:
        """Leave a line for the epoch in the place of the bar."""
        self.close()
        parts = epoch_parts(facts, epochs=epochs, num_steps=num_steps)
        text = Text("\n".join(wrapped(parts, self._console.width)))
        text.stylize("bold", 0, len(parts[0]))
        self._print(text)

    def closing(self, result: Mapping[str, Any], history: Mapping[int, EpochFacts]) -> None:
        """Draw the closing panel with its table."""
        self.close()
        columns = closing_columns(result, history)
        parts: list[RenderableType] = []
        if columns:
            parts += [_metrics_table(columns), Text("")]
        parts.append(_grid(closing_lines(result)))
        style = _STATUS_STYLES.get(str(result.get("status")), "bold")
        title = Text(closing_title(result), style=style)
        self._print(Panel(Group(*parts), title=title, title_align="left", expand=False))

    def close(self) -> None:
        """Remove the bar and give `sys.stdout` and `sys.stderr` back. May be called twice."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _draw(self, renderable: RenderableType) -> None:
        # The empty line below makes the frame end with a line break.
        frame = Group(renderable, Text(""))
        if self._live is None:
            self._live = Live(frame, console=self._console, auto_refresh=False, transient=True)
            self._live.start(refresh=True)
        else:
            self._live.update(frame, refresh=True)

    def _print(self, renderable: RenderableType) -> None:
        self._console.print(renderable)


def progress_renderable(facts: ProgressFacts, width: int) -> RenderableType:
    """Return the bar with its texts on one line of at most `width` columns.

    Where space is short, metrics are left out from the last one on, then the bar.
    """
    head, done = progress_head(facts)
    metrics, tail = list(metric_texts(facts.metrics)), progress_tail(facts)
    while True:
        right = "  ".join([done, *metrics, *tail])
        space = width - len(head) - len(right) - 4
        if space >= _MIN_BAR_WIDTH or len(metrics) <= 1:
            break
        metrics.pop()
    texts = Text(right, no_wrap=True, overflow="ellipsis")
    grid = Table.grid(padding=(0, 2, 0, 0))
    cells: list[RenderableType] = [Text(head, style="bold", no_wrap=True)]
    if space >= _MIN_BAR_WIDTH and facts.steps_per_epoch:
        bar_width = min(space, _MAX_BAR_WIDTH)
        cells.append(
            ProgressBar(total=facts.steps_per_epoch, completed=facts.step, width=bar_width)
        )
    grid.add_row(*cells, texts)
    return grid


def _grid(lines: Sequence[Line]) -> Table:
    """Return labels and texts in two columns."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row(line.label, Text(line.text, style="yellow" if line.is_warning else ""))
    return grid


def _metrics_table(columns: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    """Return one row a metric and one column a moment."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", style="cyan", overflow="fold")
    for heading, _ in columns:
        table.add_column(heading, justify="right")
    names = dict.fromkeys(name for _, metrics in columns for name in metrics)
    for name in names:
        values = (metrics.get(name) for _, metrics in columns)
        table.add_row(printable(name), *("" if v is None else metric_text(v) for v in values))
    return table
