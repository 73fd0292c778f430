"""A peer's control thread: it takes the chief's call and notices when the chief is gone."""

import asyncio
import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from kdist import errors
from kdist.cluster.control_hello import Identity, beat_interval_s, greet_chief
from kdist.cluster.control_loop import LoopThread
from kdist.cluster.control_wire import MAX_MESSAGE_BYTES, Wire, WireFault, encode
from kdist.cluster.task import Task
from kdist.errors import KdistError, PeerLostError, TrainingError


class ChiefEndedError(PeerLostError):
    """The chief ended the run while this task was still waiting for it; not a fault of its own."""

    is_consequence = True

    def __init__(self, message: str, exit_code: int) -> None:
        """Carry the chief's exit code, which becomes this task's."""
        super().__init__(message)
        self.exit_code = exit_code


class Hearing:
    """What a peer has heard from its chief; shared by its main and its control thread."""

    def __init__(self) -> None:
        """Nothing heard yet."""
        self.changed = threading.Condition()
        self.loop = LoopThread("kdist-control")
        self.wire: Wire | None = None
        self.beat_interval_s = 2.0
        self.awaited = ""  # Whom the chief still waits for.
        self.turned_away = ""  # Why another caller was refused.
        self.last_contact_s = time.monotonic()
        self.has_gone = False
        self.is_chief_ready = False
        self.decisions: deque[Any] = deque()
        self.exit_code: int | None = None  # The chief's, once the run has ended.
        self.error: KdistError | None = None  # Why this task cannot go on.


class Listener:
    """Takes calls on the task's own port until the chief says go; all on the control thread."""

    def __init__(
        self,
        hearing: Hearing,
        *,
        own: Identity,
        chief: Task,
        config: Mapping[str, Any],
        key: str | None,
        start_timeout_s: float,
        on_lost: Callable[[PeerLostError], None],
        on_ended: Callable[[int], None],
    ) -> None:
        """Remember who answers, and whom to tell."""
        self._hearing = hearing
        self._own = own
        self._chief = chief
        self._config = config
        self._key = key
        self._patience_s = max(own.lost_timeout_s, start_timeout_s)
        self._on_lost = on_lost
        self._on_ended = on_ended
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Take calls, show that this task lives, and watch whether the chief does."""
        hearing = self._hearing
        self._server = await asyncio.start_server(
            self._begin_call, sock=listener, limit=MAX_MESSAGE_BYTES
        )
        next_beat_s = 0.0
        try:
            while True:
                await asyncio.sleep(min(0.2, hearing.beat_interval_s))
                now_s = time.monotonic()
                if hearing.wire is not None and now_s >= next_beat_s:
                    next_beat_s = now_s + hearing.beat_interval_s
                    hearing.wire.send({"kind": "alive"})
                is_watched = hearing.has_gone and hearing.exit_code is None
                if is_watched and now_s - hearing.last_contact_s > self._limit_s():
                    self._give_up()
                    return
        finally:
            self._server.close()

    def _begin_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.get_running_loop().create_task(self._take_call(reader, writer))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _take_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hearing = self._hearing
        wire = Wire(reader, writer, key=self._key, is_chief=False)
        try:
            hello = await greet_chief(wire, self._own)
            with hearing.changed:
                hearing.wire = wire
                hearing.beat_interval_s = beat_interval_s(hello)
                hearing.last_contact_s = time.monotonic()
                hearing.changed.notify_all()
            while True:
                message = await wire.receive(self._limit_s())
                if hearing.wire is not wire:
                    return  # The chief has called again since.
                self._obey(wire, message)
        except WireFault as fault:
            hearing.turned_away = f"a caller on this port {fault}"
        except TimeoutError:
            pass  # Silence: the clock runs since the last word.
        except OSError:
            if hearing.wire is wire:
                hearing.last_contact_s = time.monotonic()
        finally:
            wire.close()
            if hearing.wire is wire:
                with hearing.changed:
                    hearing.wire = None
                    hearing.changed.notify_all()

    def _limit_s(self) -> float:
        """Return how long the chief may be silent: while it starts, TensorFlow may block it."""
        is_starting = self._hearing.wire is not None and not self._hearing.is_chief_ready
        return self._patience_s if is_starting else self._own.lost_timeout_s

    def _obey(self, wire: Wire, message: Mapping[str, Any]) -> None:
        hearing = self._hearing
        kind = message["kind"]
        ended = None
        with hearing.changed:
            hearing.last_contact_s = time.monotonic()
            if kind == "waiting":
                hearing.awaited = str(message.get("for"))
            elif kind == "config":
                wire.send(_config_message(self._config))
            elif kind == "go":
                if self._server is not None:
                    self._server.close()  # From here on the port belongs to TensorFlow.
                wire.send({"kind": "going"})
                hearing.has_gone = True
            elif kind == "ready":
                hearing.is_chief_ready = True
            elif kind == "decision":
                hearing.decisions.append(message.get("decision"))
            elif kind == "abort":
                wire.send({"kind": "bye"})
                hearing.error = _told_error(message)
                ended = hearing.error.exit_code if hearing.has_gone else None
            elif kind == "done" and hearing.exit_code is None:
                wire.send({"kind": "bye"})
                ended = hearing.exit_code = int(message.get("exit_code", 1))
            hearing.changed.notify_all()
        if ended is not None:
            self._on_ended(ended)

    def _give_up(self) -> None:
        silence_s = self._limit_s()
        error = PeerLostError(
            f"{self._chief} vanished without a word: nothing heard for {silence_s:g} s "
            "(cluster.chief_lost_timeout_s). Start this task again together with its chief."
        )
        with self._hearing.changed:
            self._hearing.error = error
            self._hearing.changed.notify_all()
        self._on_lost(error)


def _config_message(config: Mapping[str, Any]) -> dict[str, Any]:
    message = {"kind": "config", "config": dict(config)}
    with contextlib.suppress(TrainingError):
        encode(message)
        return message
    return {"kind": "config", "config": {"configuration": "too long to compare"}}


def _told_error(message: Mapping[str, Any]) -> KdistError:
    """Return the error that the chief ended with, in this task's own name."""
    if isinstance(exit_code := message.get("exit_code"), int):
        return ChiefEndedError(str(message.get("message")), exit_code)
    named = getattr(errors, str(message.get("type")), TrainingError)
    is_ours = isinstance(named, type) and issubclass(named, KdistError)
    error = (named if is_ours else TrainingError)(str(message.get("message")))
    error.is_consequence = True  # pyright: ignore[reportAttributeAccessIssue]
    return error
