"""Writes one thing at a time, in a thread of its own where training should not wait."""

import threading
from collections.abc import Callable


class Writer:
    """Runs jobs one after the other. Only one thread may call its methods."""

    def __init__(self, *, is_async: bool):
        """Prepare; without `is_async` a job is done when `submit` returns."""
        self.is_async = is_async
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Begin a job, once the one before is done.

        Raises:
            Exception: What the job before, or without a thread this one, ended with.
        """
        self.wait()
        if not self.is_async:
            job()
            return

        def run() -> None:
            try:
                job()
            except Exception as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="kdist-checkpoint", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the job that runs; with a limit, leave it alone if it takes longer.

        Raises:
            Exception: What it ended with.
        """
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise what a job ended with, once; do not wait."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
