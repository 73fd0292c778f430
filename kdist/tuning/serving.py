"""The chief of a distributed search: its book, served to tuners on other machines."""

import asyncio
import queue
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdist.cluster.control_loop import LoopThread
from kdist.cluster.control_sockets import open_listener
from kdist.cluster.control_wire import MAX_MESSAGE_BYTES, Wire, WireFault
from kdist.cluster.task import Task, TaskType
from kdist.config.schema import Config
from kdist.errors import KdistError, TaskTimeoutError, exit_code_of
from kdist.tuning.book import Book
from kdist.tuning.console import SearchConsole
from kdist.tuning.desk import Verdict
from kdist.tuning.greeting import greet_tuner
from kdist.tuning.loop import Stop
from kdist.tuning.role import Role

_TICK_S = 0.2
_CHIEF = Task(TaskType.CHIEF, 0)


@dataclass(frozen=True)
class _Call:
    """What a tuner said, or that it was lost (`message` is `None`)."""

    tuner: str
    wire: Wire
    message: Mapping[str, Any] | None


class Server:
    """Takes tuners' calls on a thread of its own and leaves them to whoever reads `calls`."""

    def __init__(self, role: Role, config: Config, welcome: Mapping[str, Any]) -> None:
        """Prepare; `start` listens."""
        self.calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._role = role
        self._config = config
        self._welcome = welcome
        self._loop = LoopThread("kdist-oracle")
        self._tuners: dict[str, Wire] = {}

    @property
    def tuners(self) -> list[str]:
        """Who is connected."""
        return list(self._tuners)

    def start(self) -> None:
        """Listen.

        Raises:
            EnvironmentFault: If the port cannot be had.
        """
        listener = open_listener(_CHIEF, self._role.address)
        self._loop.start()
        self._loop.spawn(self._serve(listener))

    def answer(self, call: _Call, content: Mapping[str, Any]) -> None:
        """Send an answer; one that cannot be sent is no error here."""
        self._loop.call(call.wire.send, {"kind": "answer", **content})

    def stop(self) -> None:
        """Hang up; may be called again."""
        self._loop.stop()

    async def _serve(self, listener: Any) -> None:
        server = await asyncio.start_server(self._attend, sock=listener, limit=MAX_MESSAGE_BYTES)
        await server.serve_forever()

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Look after one tuner until it is gone."""
        wire = Wire(reader, writer, key=self._config.cluster.key, is_chief=True)
        tuner = ""
        try:
            hello = await greet_tuner(wire, self._welcome, self._tuners)
            tuner = str(hello["tuner"])
            self._tuners[tuner] = wire
            while True:
                message = await wire.receive(self._config.cluster.heartbeat_timeout_s)
                if message["kind"] == "alive":
                    wire.send({"kind": "alive"})
                else:
                    self.calls.put(_Call(tuner, wire, message))
        except (OSError, TimeoutError, WireFault):
            pass
        finally:
            wire.close()
            if tuner:
                self._tuners.pop(tuner, None)
                self.calls.put(_Call(tuner, wire, None))


def serve(
    book: Book,
    role: Role,
    config: Config,
    settings: Mapping[str, Any],
    search_dir: Path,
    stop: Stop,
    console: SearchConsole,
) -> None:
    """Serve the book until the search is over and all tuners have left, or a signal comes.

    Raises:
        TaskTimeoutError: If no tuner is there for `cluster.start_timeout_s`.
        KdistError: If the search cannot go on.
    """
    server = Server(role, config, {"settings": dict(settings), "search_dir": str(search_dir)})
    server.start()
    console.say(f"Serves the oracle at {role.address}; trials run where tuners do.")
    try:
        _Chief(book, config, server, stop, console).run(role)
    finally:
        server.stop()


class _Chief:
    """Answers calls, in the main thread, one after the other."""

    def __init__(
        self, book: Book, config: Config, server: Server, stop: Stop, console: SearchConsole
    ) -> None:
        self._book = book
        self._config = config
        self._server = server
        self._stop = stop
        self._console = console
        self._running: dict[str, set[str]] = {}  # Trials by tuner.
        self._error: KdistError | None = None

    def run(self, role: Role) -> None:
        """Answer until the search is over."""
        cluster = self._config.cluster
        seen_s = time.monotonic()
        over_s: float | None = None
        while self._stop.first is None:
            self._take_call()
            self._console.tick()
            now_s = time.monotonic()
            if self._server.tuners:
                seen_s = now_s
            if self._error is not None or self._book.is_over:
                over_s = over_s or now_s
                if not self._server.tuners or now_s - over_s > cluster.stop_grace_s:
                    break
            elif now_s - seen_s > cluster.start_timeout_s:
                raise TaskTimeoutError(
                    f"Gave up after {cluster.start_timeout_s:g} s waiting for a tuner to call at "
                    f"{role.address} (cluster.start_timeout_s). Start one with the same command, "
                    "KERASTUNER_TUNER_ID=tuner0 and this chief's KERASTUNER_ORACLE_IP and "
                    "KERASTUNER_ORACLE_PORT."
                )
        if self._error is not None:
            raise self._error

    def _take_call(self) -> None:
        try:
            call = self._server.calls.get(timeout=_TICK_S)
        except queue.Empty:
            return
        if call.message is None:
            self._lose(call.tuner)
            return
        try:
            if self._error is not None:
                raise self._error
            self._server.answer(call, self._carry_out(call.tuner, call.message))
        except KdistError as error:
            self._error = error
            fields = {"error": str(error), "exit_code": exit_code_of(error)}
            self._server.answer(call, fields)

    def _carry_out(self, tuner: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a tuner asks of the book; return the answer."""
        name, arguments = str(message["kind"]), message.get("arguments") or {}
        running = self._running.setdefault(tuner, set())
        if name == "next_trial":
            assignment = self._book.next_trial(tuner)
            if assignment is not None:
                running.add(assignment.trial)
            plain = None if assignment is None else assignment.to_plain()
            return {"assignment": plain, "is_over": self._book.is_over}
        if name not in ("started", "epoch", "ran", "completed", "failed"):
            return {"error": f"The chief knows no {name}.", "exit_code": 1}
        if arguments.get("trial") not in running:
            return {"error": f"Trial {arguments.get('trial')} was handed on.", "exit_code": 75}
        answer = getattr(self._book, name)(**arguments)
        if name in ("completed", "failed"):
            running.discard(arguments["trial"])
        if isinstance(answer, Verdict):
            return {"action": answer.action, "reason": answer.reason}
        return {}

    def _lose(self, tuner: str) -> None:
        """Hand out again what a tuner leaves behind."""
        for trial in sorted(self._running.pop(tuner, set())):
            self._console.say(f"{tuner} was lost; trial {trial} is handed out again.")
            self._book.hand_out_again(trial)
