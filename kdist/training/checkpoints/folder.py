"""The checkpoints of a run: written aside, found by step, kept and removed by rule.

Only folders named `step-<number>` and the files in them that kdist writes are ever touched.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kdist.errors import TrainingError
from kdist.training.best import best_of
from kdist.training.checkpoints import files
from kdist.training.checkpoints.format import (
    OWN_FILES,
    BrokenCheckpointError,
    SavedCheckpoint,
    Value,
    read_checkpoint,
    write_checkpoint,
)

_NAME = re.compile(r"step-(\d{9,})(?:-(\d+))?")
_ASIDE = re.compile(r"\.step-\d{9,}(-\d+)?\.\d+")


class CheckpointWriteError(TrainingError, OSError):
    """A checkpoint could not be written; those before it are as they were."""


@dataclass(frozen=True, kw_only=True)
class KeepRule:
    """Which checkpoints stay.

    Attributes:
        newest: How many of the newest.
        keeps_best: Whether the best one stays, too.
        monitor: What "best" goes by; `None` means `val_loss`, or `loss` without validation.
        mode: "min", "max", or "auto", which goes by the monitor's name.
    """

    newest: int = 3
    keeps_best: bool = True
    monitor: str | None = None
    mode: str = "auto"


@dataclass(frozen=True)
class Written:
    """A checkpoint that was just written."""

    path: str
    num_bytes: int


class CheckpointFolder:
    """The folder of one run's checkpoints. The chief uses it, one thread at a time."""

    def __init__(self, path: str, keep: KeepRule = KeepRule()):
        """Remember where; nothing is made before the first checkpoint.

        Args:
            path: Here, or elsewhere (`gs://bucket/path`).
            keep: Which checkpoints stay.
        """
        self.path = path
        self._keep = keep
        self._best_at: dict[str, Mapping[str, Any]] = {}

    def save(
        self, step: int, arrays: Iterable[tuple[str, Value]], state: Mapping[str, Any]
    ) -> Written:
        """Write a checkpoint and remove those that need not stay.

        Args:
            step: Batches seen.
            arrays: Names and values, taken one at a time.
            state: JSON-able; under `epoch_row`, where an epoch has just ended, its row.

        Raises:
            CheckpointWriteError: If it cannot be written, naming path and reason; nothing is left
                of it then, and earlier checkpoints are as they were.
        """
        name = self._free_name(step)
        target = files.join(self.path, name)
        try:
            files.make_folder(self.path)
            if files.is_remote(self.path):
                num_bytes = self._write(target, arrays, state)
            else:
                aside = files.join(self.path, f".{name}.{os.getpid()}")
                num_bytes = self._write(aside, arrays, state)
                files.rename(aside, target)
        except OSError as error:
            raise CheckpointWriteError(
                f"The checkpoint {target} cannot be written: {error.strerror or error}. Earlier "
                "ones are as they were. Check the space and the permissions there."
            ) from error
        if state.get("epoch_row") is not None:
            self._best_at[name] = state["epoch_row"]
        self._remove_old(step)
        return Written(target, num_bytes)

    @staticmethod
    def _write(folder: str, arrays: Iterable[tuple[str, Value]], state: Mapping[str, Any]) -> int:
        try:
            return write_checkpoint(folder, arrays, state)
        except BaseException:
            files.remove_folder(folder, OWN_FILES)
            raise

    def newest_whole(self, on_broken: Callable[[str], None]) -> SavedCheckpoint | None:
        """Return the newest checkpoint that is whole, or `None`.

        Args:
            on_broken: Told, in a sentence, of each newer one that is not.
        """
        for name in reversed(self._names()):
            try:
                found = read_checkpoint(files.join(self.path, name))
                found.verify()
                return found
            except BrokenCheckpointError as error:
                on_broken(f"{error} It was skipped.")
        return None

    def make(self) -> None:
        """Make the folder; the first checkpoint would otherwise.

        Raises:
            OSError: If it cannot be made, or not be written to.
        """
        files.make_folder(self.path)
        files.check_can_be_written(self.path)

    def is_empty(self) -> bool:
        """Return whether there is no checkpoint, whole or not."""
        return not self._names()

    def tidy(self) -> None:
        """Remove what a kill left half written, and look at what is there.

        Call it once, at the start, while nobody else writes here.
        """
        if not files.is_remote(self.path):
            for name in files.names(self.path):
                if _ASIDE.fullmatch(name):
                    files.remove_folder(files.join(self.path, name), OWN_FILES)
        for name in self._names():
            try:
                row = read_checkpoint(files.join(self.path, name)).state.get("epoch_row")
            except BrokenCheckpointError:
                continue
            if row is not None:
                self._best_at[name] = row

    def of_epoch(self, epoch: int) -> str | None:
        """Return the path of the checkpoint at the end of an epoch (from 1), if it was kept."""
        present = self._names()
        for name, row in reversed(self._best_at.items()):
            if name in present and row["epoch"] == epoch:
                return files.join(self.path, name)
        return None

    def _remove_old(self, step: int) -> None:
        """Remove what the rule does not keep, and what lies beyond the step just written.

        Beyond it lie broken ones, and those of an attempt that went further before the run was
        taken up again from an earlier point.
        """
        present = self._names()
        beyond = [name for name in present if _order(name)[0] > step]
        rest = [name for name in present if name not in beyond]
        kept = set(rest[-self._keep.newest :])
        if self._keep.keeps_best and (best := self._best(rest)):
            kept.add(best)
        for name in [*beyond, *(name for name in rest if name not in kept)]:
            self._best_at.pop(name, None)
            self._remove(name)

    def _best(self, names: list[str]) -> str | None:
        rows = {self._best_at[name]["epoch"]: name for name in names if name in self._best_at}
        all_rows = [self._best_at[name] for name in rows.values()]
        best = best_of(all_rows, self._keep.monitor, self._keep.mode)
        return None if best is None else rows[best["epoch"]]

    def _remove(self, name: str) -> None:
        path = files.join(self.path, name)
        try:
            if not files.is_remote(path) and _is_ours(path):  # A half would pass for a broken one.
                aside = files.join(self.path, f".{name}.{os.getpid()}")
                files.rename(path, aside)
                path = aside
            files.remove_folder(path, OWN_FILES)
        except OSError as error:
            raise CheckpointWriteError(
                f"The old checkpoint {path} cannot be removed: {error.strerror or error}."
            ) from error

    def _names(self) -> list[str]:
        """Return the names of all checkpoints, oldest first."""
        return sorted(filter(_NAME.fullmatch, files.names(self.path)), key=_order)

    def _free_name(self, step: int) -> str:
        taken = [_order(name)[1] for name in self._names() if _order(name)[0] == step]
        return f"step-{step:09d}" + (f"-{max(taken) + 1}" if taken else "")


def _is_ours(folder: str) -> bool:
    return all(name.startswith(OWN_FILES) for name in files.names(folder))


def _order(name: str) -> tuple[int, int]:
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1]), int(match[2] or 1)
