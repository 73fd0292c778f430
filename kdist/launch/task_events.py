"""What tasks tell their launcher while they run, by the name of the event."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kdist.cluster.task import Task
from kdist.launch.member import Member
from kdist.launch.surroundings import Surroundings
from kdist.records.result import COMPLETED, STOPPED


class TaskEvents:
    """Notes what tasks tell; hands on what the supervisor has to decide about."""

    def __init__(
        self,
        members: Sequence[Member],
        chief: Task,
        around: Surroundings,
        *,
        on_signal: Callable[[Member, int], None],
        on_failure: Callable[[Member, Mapping[str, Any]], None],
        on_finish: Callable[[Member], None],
    ) -> None:
        """Hold the parts.

        Args:
            members: All tasks of the attempt; the list may grow.
            chief: The chief among them.
            around: Journal and budget of the run.
            on_signal: Called with a task that took a signal from somebody else, and its number.
            on_failure: Called with a task that failed, and what it tells of that.
            on_finish: Called with a task that will end now.
        """
        self._members = members
        self._chief = chief
        self._journal, self._budget = around.journal, around.budget
        self._on_signal = on_signal
        self._on_finish = on_finish
        self._taken: dict[str, Callable[[Member, Mapping[str, Any]], None]] = {
            "run_folder_ready": self._take_folder,
            "task_ready": self._take_ready,
            "task_rejoined": self._take_rejoined,
            "progressed": self._take_progress,
            "run_ended": self._take_end_of_run,
            "signalled": self._take_signal,
            "failed": on_failure,
            "finished": self._take_finish,
        }

    def take(self, member: Member, event: str, fields: Mapping[str, Any]) -> None:
        """Take one event; what nobody knows is dropped."""
        taken = self._taken.get(event)
        if taken is not None:
            taken(member, fields)

    def _take_folder(self, member: Member, fields: Mapping[str, Any]) -> None:
        if self._journal.folder is None:
            run_dir = Path(fields.get("run_dir") or member.request.run_dir)
            self._journal.open(run_dir)
            for each in self._members:
                each.output.open_log(run_dir / "logs")

    def _take_ready(self, member: Member, fields: Mapping[str, Any]) -> None:
        del fields
        member.is_ready = True
        if member.task == self._chief:
            self._budget.has_begun = True
        self._journal.record("task_ready", task=str(member.task), pid=member.process.pid)

    def _take_rejoined(self, member: Member, fields: Mapping[str, Any]) -> None:
        del member
        self._journal.record("task_rejoined", **fields)

    def _take_progress(self, member: Member, fields: Mapping[str, Any]) -> None:
        del member
        self._budget.note_progress(int(fields.get("batches_seen", 0)))

    def _take_end_of_run(self, member: Member, fields: Mapping[str, Any]) -> None:
        if fields.get("status") in (COMPLETED, STOPPED):
            self._budget.is_over = True
        if fields.get("status") == COMPLETED:
            member.finished_code = 0

    def _take_signal(self, member: Member, fields: Mapping[str, Any]) -> None:
        is_over = member.failure is not None or member.finished_code is not None
        if not (is_over or member.is_signalled):
            member.is_signalled = True
            self._on_signal(member, int(fields["number"]))

    def _take_finish(self, member: Member, fields: Mapping[str, Any]) -> None:
        member.finished_code = int(fields.get("exit_code", 0))
        self._on_finish(member)
