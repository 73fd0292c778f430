"""One control connection: bounded JSON lines, signed where `cluster.key` is set.

Never pickle: whoever reaches the port can send anything.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from kdist.errors import TrainingError

MAX_MESSAGE_BYTES = 1 << 20


class WireFault(ValueError):
    """What came in is no message of ours: another program, another key, or too long."""


class Wire:
    """Sends and receives messages on one connection. Used on the loop's thread only.

    With a key, every line carries a signature over its sender's side, its number in the
    session, and the session's nonces, so that nothing can be forged, replayed or reordered.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        key: str | None,
        is_chief: bool,
    ) -> None:
        """Take over a connection, on the chief's or a peer's side."""
        self._reader = reader
        self._writer = writer
        self._key = key.encode() if key else b""
        self._sides = ("chief", "peer") if is_chief else ("peer", "chief")
        self._session = ""
        self._num_sent = 0
        self._num_received = 0

    def start_session(self, nonces: str) -> None:
        """Bind all later messages to this session. Both sides call it after their hellos."""
        self._session = nonces
        self._num_sent = self._num_received = 0

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue one message.

        Raises:
            TrainingError: If it is too long.
        """
        body = encode(message)
        if self._key:
            signature = self._signature(self._sides[0], self._num_sent, body)
            body = signature.encode() + b" " + body
        self._num_sent += 1
        self._writer.write(body + b"\n")

    def send_unsigned(self, message: Mapping[str, Any]) -> None:
        """Queue a message that the other side takes for a hint only."""
        self._writer.write(encode(message) + b"\n")

    async def receive(self, deadline_s: float) -> dict[str, Any]:
        """Return the next message.

        Raises:
            ConnectionError: If the connection ended.
            TimeoutError: If nothing came within `deadline_s`.
            WireFault: If something came that is no message of the other side.
        """
        try:
            line = await asyncio.wait_for(self._reader.readline(), deadline_s)
        except ValueError as error:  # The stream's limit.
            raise WireFault("sent a line that is too long") from error
        if not line.endswith(b"\n"):
            if line:
                raise WireFault("is no kdist task")
            raise ConnectionResetError("closed the connection")
        body = self._checked(line[:-1])
        self._num_received += 1
        return _decode(body)

    def close(self) -> None:
        """Close the connection; what is queued is still sent."""
        with contextlib.suppress(Exception):
            self._writer.close()

    def _checked(self, line: bytes) -> bytes:
        is_signed = line[64:66] == b" {"
        if line.startswith(b'{"kind": "refused"'):
            return line  # Unsigned where the keys differ: a hint, and no more.
        if not self._key:
            if is_signed:
                raise WireFault("has a cluster.key, which this task lacks")
            return line
        if not is_signed:
            raise WireFault("has no cluster.key" if line[:1] == b"{" else "is no kdist task")
        signature, body = line[:64], line[65:]
        expected = self._signature(self._sides[1], self._num_received, body).encode()
        if not hmac.compare_digest(signature, expected):
            raise WireFault("has another cluster.key")
        return body

    def _signature(self, side: str, number: int, body: bytes) -> str:
        content = f"{side} {number} {self._session} ".encode() + body
        return hmac.new(self._key, content, hashlib.sha256).hexdigest()


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message's line, without signature and newline.

    Raises:
        TrainingError: If it is longer than the other side accepts.
    """
    body = json.dumps(message).encode()
    if len(body) > MAX_MESSAGE_BYTES - 128:
        raise TrainingError(
            f"A control message must be smaller than {MAX_MESSAGE_BYTES} bytes. "
            f"Received: {len(body)} bytes of kind {message.get('kind')!r}."
        )
    return body


def _decode(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise WireFault("is no kdist task") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise WireFault("is no kdist task")
    return message
