"""The epochs of a trial's run, as its folder tells them while it goes on."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kdist.records.events import read_events
from kdist.records.run_folder import RunFolder
from kdist.training.report.metrics_csv import Row, read_metrics

_NO_METRICS = ("epoch", "global_step", "seconds", "examples")
_RESUMED, _ENDED = "run_resumed", "epoch_ended"

Epochs = list[tuple[int, dict[str, float]]]


class EpochReader:
    """Returns every whole epoch of a run once. Used from one thread."""

    def __init__(self, run_dir: Path) -> None:
        """Remember where the run is; nothing is read yet."""
        self._folder = RunFolder(run_dir)
        self._seen_epoch = 0
        self._num_old_events = 0

    def begin(self, seen_epoch: int) -> None:
        """Leave out epochs up to `seen_epoch`; call it before the run starts.

        What an earlier attempt left in the folder counts as far as this one goes on from it.
        """
        self._seen_epoch = seen_epoch
        self._num_old_events = len(self._events())

    def new(self, *, is_over: bool) -> Epochs:
        """Return the epochs that have ended since the last call, with their metrics.

        Args:
            is_over: Whether the run has ended, so that nothing more will be written.
        """
        if not self._new_rows():  # Events may be many: they are read only if need be.
            return []
        events = self._events()  # Before the rows: the row of an epoch is there before its event.
        has_begun = any(e["event"] in (_RESUMED, _ENDED) for e in events[self._num_old_events :])
        if not has_begun and not is_over:
            return []
        whole = whole_epochs(events)
        rows = [(_epoch_of(row), row) for row in self._new_rows()]
        found = [(epoch, _metrics_of(row)) for epoch, row in rows if epoch in whole]
        self._seen_epoch = max((epoch for epoch, _ in found), default=self._seen_epoch)
        return found

    def _new_rows(self) -> list[Row]:
        try:
            rows = read_metrics(self._folder.metrics_csv)
        except OSError:
            return []
        return [row for row in rows if _epoch_of(row) > self._seen_epoch]

    def _events(self) -> list[dict[str, Any]]:
        try:
            return read_events(self._folder.events_jsonl)
        except (OSError, ValueError):  # A full disk can spoil a line; the run fails then.
            return []


def whole_epochs(events: Iterable[Mapping[str, Any]]) -> set[int]:
    """Return the epochs that a run has come through, by its events.

    A row of metrics.csv alone does not tell them from parts of an epoch, which a stop leaves.
    """
    batches_by_epoch: dict[int, int] = {}
    for event in events:
        if event["event"] == _RESUMED:  # Later ones are trained again.
            step = event["step"]
            batches_by_epoch = {e: num for e, num in batches_by_epoch.items() if num <= step}
        elif event["event"] == _ENDED:
            epoch = event["epoch"]
            batches_by_epoch = {e: num for e, num in batches_by_epoch.items() if e < epoch}
            if not event.get("is_partial"):
                batches_by_epoch[epoch] = event["batches_seen"]
    return set(batches_by_epoch)


def _epoch_of(row: Row) -> int:
    return int(row["epoch"] or 0)


def _metrics_of(row: Row) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if name not in _NO_METRICS and value is not None
    }
