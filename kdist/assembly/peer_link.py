"""The ties of every task but the chief: it obeys, and notices when the chief is gone."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from kdist.assembly.cluster_link import NOTICE_MARGIN_S, later, say
from kdist.cluster.control import ChiefEndedError, ControlPeer
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task
from kdist.config.schema import Config
from kdist.errors import KdistError, PeerLostError
from kdist.training.peers import Decision

_DECISION_DEADLINE_S = 24 * 3600.0
# How long this task may still tell an error of its own when the chief has ended the run with one.
_LAST_WORDS_S = 3.0


class PeerLink:
    """The ties of every other task: obeys the chief."""

    is_chief = False
    is_alone = False
    num_workers_lost = 0
    num_rejoined = 0

    def __init__(
        self,
        config: Config,
        flat: Mapping[str, Any],
        spec: ClusterSpec,
        task: Task,
        give_up: Callable[[KdistError], None],
    ):
        """Prepare the channel; see `ChiefLink`."""
        self._give_up = give_up
        self._chief = spec.chief
        self._has_asked = False
        self._error: KdistError | None = None
        self._has_error = threading.Event()
        self._notice_s = config.cluster.chief_patience_s + NOTICE_MARGIN_S
        self._is_over = False
        self.has_ended = False
        self._control = ControlPeer(
            spec,
            task,
            flat,
            start_timeout_s=config.cluster.start_timeout_s,
            lost_timeout_s=config.cluster.chief_patience_s,
            say=say,
            key=config.cluster.key,
            on_lost=self._lose,
            on_ended=self._ended,
        )

    def join(self) -> None:
        """Wait for the chief's call and its go."""
        self._control.rendezvous()

    def ready(self) -> None:
        """Tell the others that the start is over."""
        self._control.ready()

    def agree(self, decision: Decision) -> Decision:
        """Return the chief's decision; it is asked to stop where this task was told to."""
        if (reason := decision.get("stop")) and not self._has_asked:
            self.ask_to_stop(reason)
        return self._control.receive_decision(_DECISION_DEADLINE_S)

    def listen(self, on_event: Callable[[str, Task], None]) -> None:
        """Only the chief hears of others."""

    def find_lost(self) -> KdistError | None:
        """Return what the chief says of the loss; a chief that is lost itself ends this process."""
        self._has_error.wait(self._notice_s)
        return self._error

    def check(self) -> None:
        """Raise if the chief is gone."""
        if self._error is not None:
            raise self._error

    def ask_to_stop(self, reason: str) -> None:
        """Ask the chief to stop all tasks; safe in a signal handler."""
        self._has_asked = True
        self._control.ask_to_stop(reason)

    def wait_done(self) -> int:
        """Lend this process to the run until the chief ends it; return the chief's exit code."""
        return self._control.wait_done()

    def leave(self, exit_code: int, *, has_ended: bool) -> None:
        """Say that this task is finished, and wait for the chief's last word."""
        del exit_code  # The chief's is what counts.
        if has_ended:
            self._control.finished()
            self._control.wait_done()
        self._is_over = True
        self._control.close()

    def _lose(self, error: PeerLostError) -> None:
        if not self._is_over:
            self._error = error
            self._give_up(error)

    def _ended(self, exit_code: int) -> None:
        self.has_ended = True
        if exit_code != 0 and not self._is_over:
            error = ChiefEndedError(
                f"{self._chief} ended the run with exit code {exit_code}.", exit_code
            )
            self._error = error
            self._has_error.set()
            later(_LAST_WORDS_S, lambda: self._is_over or self._give_up(error))
