"""The one background thread of a control channel: an asyncio loop that ends with the process."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any


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

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function on the loop's thread; from any thread."""
        with contextlib.suppress(RuntimeError):  # Closed meanwhile: nobody is left to tell.
            self._running.call_soon_threadsafe(function, *args)

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
