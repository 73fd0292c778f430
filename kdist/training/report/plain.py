"""The console where nobody watches: plain lines, no control characters, nothing to wrap."""

from collections.abc import Mapping
from typing import Any

from kdist.training.report.closing_text import closing_columns, closing_lines, closing_title
from kdist.training.report.facts import EpochFacts, OpeningFacts, ProgressFacts
from kdist.training.report.stream import TolerantStream
from kdist.training.report.text import (
    Line,
    epoch_parts,
    metric_texts,
    opening_lines,
    progress_line,
)


class PlainView:
    """Writes one line at a time, each complete and flushed."""

    progress_interval_s = 10.0

    def __init__(self, stream: TolerantStream) -> None:
        """Write to `stream`."""
        self._stream = stream

    def opening(self, facts: OpeningFacts) -> None:
        """Write one line a fact."""
        self._write("kdist", *_aligned(opening_lines(facts)))

    def status(self, text: str) -> None:
        """Write nothing: a passing state is for people who watch."""

    def progress(self, facts: ProgressFacts) -> None:
        """Write one line."""
        self._write(progress_line(facts))

    def epoch(self, facts: EpochFacts, *, epochs: int | None, num_steps: int) -> None:
        """Write one line."""
        self._write("  ".join(epoch_parts(facts, epochs=epochs, num_steps=num_steps)))

    def closing(self, result: Mapping[str, Any], history: Mapping[int, EpochFacts]) -> None:
        """Write the end, a line for each column of metrics, and the counts."""
        columns = [
            Line(heading, "  ".join(metric_texts(metrics)))
            for heading, metrics in closing_columns(result, history)
        ]
        self._write(closing_title(result), *_aligned([*columns, *closing_lines(result)]))

    def close(self) -> None:
        """Do nothing: every line is already out."""

    def _write(self, *lines: str) -> None:
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()


def _aligned(lines: list[Line] | tuple[Line, ...]) -> list[str]:
    """Return the lines with their texts in one column."""
    width = max((len(line.label) for line in lines), default=0)
    return [f"  {line.label:<{width}}  {line.text}" for line in lines]
