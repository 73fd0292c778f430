"""One run of a trial: started by the one runner of runs, watched through its folder."""

import io
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kdist import config as kdist_config
from kdist.errors import EnvironmentFault, KdistError
from kdist.launch.local import LocalRun, run_tasks
from kdist.launch.request import TaskRequest
from kdist.launch.signals import SignalInbox
from kdist.records.resumption import Wish, is_finished
from kdist.records.run_folder import RunFolderTakenError
from kdist.tuning.epochs import EpochReader, Epochs

_LOCK_DEADLINE_S = 15.0
_LOCK_POLL_S = 0.1
_MACHINES_FAULTS = (EnvironmentFault.__name__, "CheckpointWriteError")
_STOPPED_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM)


class TrialRun:
    """A run in processes of its own, under a thread of this one."""

    def __init__(
        self,
        requests: Sequence[TaskRequest],
        on_end: Callable[[], None],
        *,
        goes_on: bool = False,
    ) -> None:
        """Prepare; `start` starts.

        Args:
            requests: The tasks of the run.
            on_end: Called in the thread when the run is over.
            goes_on: Whether its folder holds a run that was interrupted, a moment ago perhaps.
        """
        self._goes_on = goes_on
        self.run_dir = Path(requests[0].run_dir)
        self._requests = requests
        self._on_end = on_end
        self._signals = SignalInbox()
        self._messages = io.StringIO()
        self._ended: LocalRun | None = None
        self._error: BaseException | None = None
        self._epochs = EpochReader(self.run_dir)
        self._thread = threading.Thread(target=self._run, name=f"run-{self.run_dir.name}")

    def start(self, *, seen_epoch: int) -> None:
        """Start the processes; epochs up to `seen_epoch` are known already."""
        self._epochs.begin(seen_epoch)
        self._thread.start()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Let it save a checkpoint and end; a second call kills it."""
        self._signals.send(number)

    @property
    def is_over(self) -> bool:
        """Whether all its processes have ended."""
        return self._ended is not None or self._error is not None

    @property
    def is_completed(self) -> bool:
        """Whether it came to its end."""
        return self._ended is not None and self._ended.exit_code == 0

    @property
    def is_stopped(self) -> bool:
        """Whether it ended because of `stop`, with a checkpoint."""
        return self._ended is not None and self._ended.exit_code in _STOPPED_CODES

    @property
    def is_machines_fault(self) -> bool:
        """Whether it failed for what the machine lacks, such as space on a disk."""
        if self._error is not None:
            return isinstance(self._error, EnvironmentFault)
        cause = None if self._ended is None else self._ended.cause
        return cause is not None and cause.type in _MACHINES_FAULTS

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        if self._error is not None:
            name = "" if isinstance(self._error, KdistError) else f"{type(self._error).__name__}: "
            return f"{name}{self._error}"
        ended = self._ended
        if ended is not None and ended.cause is not None:
            cause = ended.cause
            prefix = "" if cause.message.startswith(f"{cause.type}:") else f"{cause.type}: "
            return f"{prefix}{cause.message}"
        return f"The run ended with exit code {ended.exit_code if ended else None}."

    def new_epochs(self) -> Epochs:
        """Return the whole epochs that have ended since the last call, with their metrics."""
        return self._epochs.new(is_over=self.is_over)

    def join(self, deadline_s: float) -> None:
        """Wait for the thread, which ends with the run."""
        self._thread.join(deadline_s)

    def _run(self) -> None:
        try:
            if self._goes_on and self._is_finished():
                self._ended = LocalRun(exit_code=0, cause=None, run_dir=self.run_dir, warnings=())
                return
            self._ended = run_tasks(
                self._requests,
                signals=self._signals,
                stdout=_Nowhere(),
                stderr=self._messages,
            )
        except BaseException as error:
            self._error = error
        finally:
            self._on_end()

    def _is_finished(self) -> bool:
        """Return whether the run came to its end before; wait until its processes are gone."""
        request = self._requests[0]
        wish = Wish(
            run_dir=self.run_dir,
            config=kdist_config.load(request.config),
            config_yaml=request.config_yaml,
        )
        end_s = time.monotonic() + _LOCK_DEADLINE_S
        while True:
            try:
                return is_finished(wish)
            except RunFolderTakenError:
                if time.monotonic() >= end_s:
                    raise
            time.sleep(_LOCK_POLL_S)


class _Nowhere(io.StringIO):
    """Takes what a trial shows; its log has it, too."""

    def write(self, text: str, /) -> int:
        """Forget it."""
        return len(text)
