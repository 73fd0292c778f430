"""The one background thread of a control channel: an asyncio loop that ends with the process."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_CALL_DEADLINE_S = 5.0


class LoopThread:
    """Runs coroutines on a daemon thread of its own."""

    def __init__(self, name: str) -> None:
        """Name the thread; nothing runs before `start`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_up = threading.Event()

    def start(self) -> None:
        """Start the thread. Called once."""
        self._thread.start()
        self._is_up.wait(10)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the background; from any thread."""
        asyncio.run_coroutine_threadsafe(coroutine, self._running)

    def call(self, function: Callable[..., Any], *args: Any) -> bool:
        """Call a function on the loop's thread; from any thread. Return whether it will run."""
        try:
            self._running.call_soon_threadsafe(function, *args)
        except RuntimeError:  # Closed meanwhile: nobody is left to tell.
            return False
        return True

    def call_now(self, function: Callable[[], Any]) -> None:
        """Call a function on the loop's thread and return when it has run; from another thread.

        What it sends is with the kernel then, unless buffers are full. That matters before a call
        into native code that keeps Python's lock while it waits: this thread could not run.
        """
        has_run = threading.Event()

        def run() -> None:
            try:
                function()
            finally:
                has_run.set()

        if self.call(run) and threading.current_thread() is not self._thread:
            has_run.wait(_CALL_DEADLINE_S)

    def stop(self) -> None:
        """End all coroutines and the thread; may be called again, and before `start`."""
        if self._loop is None or self._loop.is_closed():
            return
        self.call(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    @property
    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("The control loop was not started.")
        return self._loop

    def _run(self) -> None:
        self._loop = loop = asyncio.new_event_loop()
        try:
            loop.call_soon(self._is_up.set)
            loop.run_forever()
            pending = asyncio.all_tasks(loop)
            for task in pending:
                task.cancel()
            if pending:
                loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            loop.run_until_complete(asyncio.sleep(0))  # Lets closed connections go.
        finally:
            loop.close()
