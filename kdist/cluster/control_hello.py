"""How chief and peer introduce themselves, before anything else is said on a connection."""

import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kdist.cluster.control_wire import Wire, WireFault
from kdist.cluster.task import Task

PROTOCOL = 1
HELLO_DEADLINE_S = 5.0


@dataclass(frozen=True)
class Identity:
    """Who says hello."""

    task: Task
    digest: str  # Of its configuration.
    lost_timeout_s: float  # Silence after which it counts the other side as lost.

    def hello(self, nonce: str, **more: str) -> dict[str, Any]:
        """Return the message."""
        return {
            "kind": "hello",
            "protocol": PROTOCOL,
            "task": str(self.task),
            "host": socket.gethostname(),
            "digest": self.digest,
            "lost_timeout_s": self.lost_timeout_s,
            "nonce": nonce,
            **more,
        }


def beat_interval_s(hello: Mapping[str, Any]) -> float:
    """Return how often to show life to the sender of a hello."""
    wanted_s = hello.get("lost_timeout_s")
    return min(2.0, wanted_s / 4) if isinstance(wanted_s, int | float) else 2.0


async def greet_peer(wire: Wire, own: Identity, peer: Task) -> dict[str, Any]:
    """Say hello on a connection that the chief opened, and return the peer's hello.

    Raises:
        ConnectionError: If the peer hung up.
        TimeoutError: If it stayed silent.
        WireFault: If nobody of ours, or somebody with another key, answered.
    """
    nonce = secrets.token_hex(16)
    wire.send(own.hello(nonce, to=str(peer)))
    answer = await wire.receive(HELLO_DEADLINE_S)
    if answer["kind"] == "refused":
        raise WireFault(f"turned the chief away: {str(answer.get('reason'))[:200]}")
    if answer["kind"] != "hello":
        raise WireFault("is no kdist task")
    wire.start_session(f"{nonce}{answer.get('nonce')}")
    return answer


async def greet_chief(wire: Wire, own: Identity) -> dict[str, Any]:
    """Answer a caller's hello and return it; afterwards the connection speaks for the chief.

    Raises:
        ConnectionError: If the caller hung up.
        TimeoutError: If it stayed silent.
        WireFault: If it is no chief of ours, or has another key.
    """
    try:
        hello = await wire.receive(HELLO_DEADLINE_S)
        if hello["kind"] != "hello":
            raise WireFault("is no kdist task")
    except WireFault as fault:
        wire.send_unsigned({"kind": "refused", "reason": f"the caller {fault}"})
        raise
    nonce = secrets.token_hex(16)
    wire.send(own.hello(nonce))
    wire.start_session(f"{hello.get('nonce')}{nonce}")
    return hello
