"""The chief's control thread: it calls each peer, listens to it, and calls again after a loss."""

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kdist.cluster.control_hello import (
    HELLO_DEADLINE_S,
    PROTOCOL,
    Identity,
    beat_interval_s,
    greet_peer,
)
from kdist.cluster.control_roster import Peer, Roster
from kdist.cluster.control_sockets import split_address
from kdist.cluster.control_wire import MAX_MESSAGE_BYTES, Wire, WireFault
from kdist.cluster.task import Task, TaskType

_RETRY_S = 0.2
_CONNECT_DEADLINE_S = 3.0

TaskCallback = Callable[[Task], None]


class Caller:
    """Keeps one connection to every peer; all of it runs on the control thread."""

    def __init__(
        self,
        roster: Roster,
        *,
        own: Identity,
        key: str | None,
        start_timeout_s: float,
        rejoins: Collection[TaskType],
        on_lost: TaskCallback,
        on_rejoined: TaskCallback,
    ) -> None:
        """Remember whom to call, and as whom."""
        self._roster = roster
        self._own = own
        self._key = key
        self._patience_s = max(own.lost_timeout_s, start_timeout_s)
        self._rejoins = frozenset(rejoins)
        self._on_lost = on_lost
        self._on_rejoined = on_rejoined

    async def keep_alive(self) -> None:
        """Show all peers that the chief lives."""
        while True:
            await asyncio.sleep(min(peer.beat_interval_s for peer in self._roster.peers))
            self._roster.send_all({"kind": "alive"})

    async def attend(self, peer: Peer) -> None:
        """Look after one peer for the whole run."""
        while not self._roster.is_over:
            wire = await self._call(peer)
            if wire is None:
                return
            try:
                while True:
                    limit_s = self._own.lost_timeout_s if peer.is_ready else self._patience_s
                    self._take(peer, await wire.receive(limit_s))
            except (OSError, WireFault) as error:
                self._lose(peer, error)
            finally:
                wire.close()
            if peer.is_lost and peer.task.type not in self._rejoins:
                return

    async def _call(self, peer: Peer) -> Wire | None:
        """Return a connection on which hellos were exchanged; `None` once the run is over."""
        host, port = split_address(peer.address)
        while not self._roster.is_over:
            wire = None
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(host, port, limit=MAX_MESSAGE_BYTES),
                    _CONNECT_DEADLINE_S,
                )
                wire = Wire(reader, writer, key=self._key, is_chief=True)
                hello = await greet_peer(wire, self._own, peer.task)
                await self._welcome(peer, wire, hello)
                return wire
            except (OSError, WireFault) as error:
                if wire is not None:
                    wire.close()
                peer.note = _reason(error)
            await asyncio.sleep(_RETRY_S)
        return None

    async def _welcome(self, peer: Peer, wire: Wire, hello: Mapping[str, Any]) -> None:
        fault, config = _fault(peer, hello), None
        if not fault and hello.get("digest") != self._own.digest:
            wire.send({"kind": "config"})
            answer = await wire.receive(HELLO_DEADLINE_S)
            config = answer.get("config")
            config = config if isinstance(config, dict) else {}
        roster = self._roster
        with roster.changed:
            is_back = roster.has_gone
            if is_back and (fault or config is not None):
                reason = fault or "it was restarted with another configuration"
                wire.send({"kind": "abort", "type": "ConfigError", "message": reason})
                raise WireFault(f"cannot come back: {reason}")
            peer.wire, peer.fault, peer.config = wire, fault, config
            peer.beat_interval_s = beat_interval_s(hello)
            was_lost, peer.is_lost, peer.is_finished = peer.is_lost, False, False
            peer.is_ready = False
            roster.changed.notify_all()
        if is_back:
            wire.send({"kind": "go"})
            if roster.is_ready:
                wire.send({"kind": "ready"})
        if was_lost:
            self._on_rejoined(peer.task)

    def _take(self, peer: Peer, message: Mapping[str, Any]) -> None:
        with self._roster.changed:
            kind = message["kind"]
            peer.is_going |= kind == "going"
            peer.is_ready |= kind == "ready"
            peer.is_finished |= kind == "finished"
            peer.said_goodbye |= kind == "bye"
            if kind == "stop":
                self._roster.stop_reason = str(message.get("reason"))
            self._roster.changed.notify_all()

    def _lose(self, peer: Peer, error: Exception) -> None:
        roster = self._roster
        with roster.changed:
            peer.wire, peer.note, peer.is_going = None, _reason(error), False
            peer.is_silent = isinstance(error, TimeoutError)
            is_loss = roster.has_gone and not roster.is_over
            if is_loss:
                peer.is_lost = True
                roster.losses.append(peer.task)
            roster.changed.notify_all()
        if is_loss:
            self._on_lost(peer.task)


def _fault(peer: Peer, hello: Mapping[str, Any]) -> str:
    """Return why a task that answered can never take part, or an empty text."""
    if hello.get("protocol") != PROTOCOL:
        return f"{peer.task} ({peer.address}) runs another version of kdist; install the same one."
    if hello.get("task") != str(peer.task):
        return (
            f"{peer.address} should be {peer.task}. Received: {hello.get('task')} answers there "
            f"(host {hello.get('host')}). Correct TF_CONFIG's task on that machine."
        )
    return ""


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name does not resolve"
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    if str(error).startswith("Multiple exceptions"):  # One for each address of the host.
        return "cannot be reached"
    return str(error)
