"""The launcher's entries in the run folder: its events, and a result where the chief left none."""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import TaskType
from kdist.errors import KdistError
from kdist.launch.outcome import Restart
from kdist.launch.policy import Cause, TaskEnd, is_abnormal
from kdist.launch.restarts import is_loss
from kdist.records.events import EventLog
from kdist.records.launch_story import LaunchStory
from kdist.records.result import (
    COMPLETED,
    FAILED,
    STOPPED,
    blank_result,
    read_result,
    write_result,
)
from kdist.records.run_folder import RunFolder
from kdist.version import __version__


class Journal:
    """Keeps events until the chief has made the run folder, then appends them there."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        """Nothing is written before `open`."""
        self._clock = clock
        self._kept: list[tuple[float, str, dict[str, Any]]] = []
        self._log: EventLog | None = None
        self.folder: RunFolder | None = None
        self.error: str | None = None
        self.story = LaunchStory()

    def open(self, run_dir: Path | str) -> None:
        """Write to this run folder from now on; the chief has made it."""
        self.folder = RunFolder(Path(run_dir))
        self._log = EventLog(self.folder.events_jsonl)
        for at_s, event, fields in self._kept:
            self._write(event, at_s, fields)
        self._kept.clear()

    def record(self, event: str, **fields: Any) -> None:
        """Note that something happened now. A folder that cannot be written ends nothing."""
        at_s = self._clock()
        self.story.note(event, fields)
        if self._log is None:
            self._kept.append((at_s, event, fields))
        else:
            self._write(event, at_s, fields)

    def record_end(self, end: TaskEnd, *, is_over: bool) -> None:
        """Note how a task ended: lost or failed, unless it was to end or training is over."""
        event, message = "task_ended", None
        if is_abnormal(end.exit_code) and not (end.was_stopped or is_over):
            event = "task_lost" if is_loss(end) else "task_failed"
            message = end.failure.message if end.failure else end.how
        self.record(event, task=str(end.task), exit_code=end.exit_code, message=message)

    def record_failure(self, cause: Cause) -> None:
        """Note why the run ends; a chief that can still tell how it ended has it from there."""
        self.record(
            "run_failed",
            task=str(cause.task),
            type=cause.type,
            message=cause.message,
            is_consequence=cause.is_consequence or None,
        )

    def begin_attempt(self, attempt: int, restart: Restart) -> None:
        """Note that all tasks start again. What the last chief wrote of its end counts no more."""
        self.record(
            "run_restarted",
            attempt=attempt,
            lost=str(restart.lost),
            without=None if restart.without is None else str(restart.without),
        )
        if self.folder is None:
            return
        with contextlib.suppress(OSError, KdistError):
            if read_result(self.folder.result_json)["status"] != COMPLETED:
                self.folder.result_json.unlink()

    def settle_result(
        self,
        *,
        cause: Cause | None,
        was_stopped: bool,
        known: Mapping[str, Any],
    ) -> str | None:
        """Make result.json tell how the run ended, where the chief could not or did not know.

        Args:
            cause: Why the run failed, if it did.
            was_stopped: Whether a signal ended it.
            known: Values for a result that has to be made from nothing.

        Returns:
            Why a run that was stopped could not save all that it had, if so.
        """
        if self.folder is None:
            return None
        try:
            written = read_result(self.folder.result_json)
        except KdistError:
            written = None
        settled = settled_result(written, cause=cause, was_stopped=was_stopped, known=known)
        counts = {
            "restarts": self.story.num_restarts,
            "workers_lost": self.story.num_workers_lost,
        }
        latest = settled or written
        if latest and any((latest.get(name) or 0) != count for name, count in counts.items()):
            settled = {**latest, **counts}
        if settled is None:
            return None
        status = None if written is None else written["status"]
        try:
            write_result(self.folder.result_json, settled)
            if status != settled["status"]:
                self.record("run_ended", status=settled["status"], error=settled["error"])
        except KdistError as error:
            self.error = str(error)
        return settled["warnings"][-1] if (status, settled["status"]) == (FAILED, STOPPED) else None

    def _write(self, event: str, at_s: float, fields: dict[str, Any]) -> None:
        try:
            if self._log is not None:
                self._log.write(event, at_s=at_s, **fields)
        except KdistError as error:
            self.error = str(error)


def settled_result(
    written: Mapping[str, Any] | None,
    *,
    cause: Cause | None,
    was_stopped: bool,
    known: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Return the result to write, or `None` where the one that is there tells all.

    The chief's own account stays; only what it could not know is put right: that another task
    was the cause, that the chief itself was killed, or that a loss kept it from saving while it
    stopped, which is no failure of a run that goes on later.
    """
    if cause is not None:
        error = {"type": cause.type, "message": cause.message, "task": str(cause.task)}
        if written is None:
            return blank_result(**{**known, "status": FAILED, "error": error})
        knows_better = (written.get("error") or {}).get("task") == error["task"]
        if written["status"] == FAILED and (cause.is_consequence or knows_better):
            return None
        if written["status"] == COMPLETED and cause.is_consequence:
            return None
        return {**written, "status": FAILED, "error": error}
    if was_stopped and written is None:
        warning = "The chief was killed before it could write its result."
        return blank_result(**{**known, "status": STOPPED, "warnings": [warning]})
    if was_stopped and written is not None and written["status"] == FAILED:
        what = (written.get("error") or {}).get("message") or "A task was lost."
        warning = f"{what} The run was stopping: steps since its last checkpoint are not saved."
        warnings = [*(written.get("warnings") or []), warning]
        return {**written, "status": STOPPED, "error": None, "warnings": warnings}
    return None


def known_facts(config: Mapping[str, Any], spec: ClusterSpec) -> dict[str, Any]:
    """Return what a result can say without the chief."""
    strategy = config.get("strategy") or {}
    return {
        "strategy": strategy.get("name"),
        "replication": strategy.get("replication"),
        "update": strategy.get("update"),
        "cluster": {str(kind): spec.num(kind) for kind in TaskType},
        "epochs": config.get("epochs"),
        "steps_per_epoch": config.get("steps_per_epoch"),
        "versions": {"kdist": __version__},
    }
