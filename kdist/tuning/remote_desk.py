"""A tuner's side of a distributed search: the chief's book, over a network."""

import asyncio
import queue
import time
from collections.abc import Mapping
from typing import Any

from kdist.cluster.control_loop import LoopThread
from kdist.cluster.control_wire import MAX_MESSAGE_BYTES, Wire, WireFault
from kdist.config.schema import ClusterConfig
from kdist.errors import ConfigError, KdistError, PeerLostError, TaskTimeoutError, TrainingError
from kdist.tuning.desk import Assignment, Verdict
from kdist.tuning.greeting import greet_chief
from kdist.tuning.role import Role

_RETRY_S = 0.5
_ASK_AGAIN_S = 1.0
_MAX_BEAT_S = 2.0


class RemoteDesk:
    """A `Desk` that asks the chief. Used from one thread."""

    def __init__(self, role: Role, settings: Mapping[str, Any], cluster: ClusterConfig) -> None:
        """Prepare; `connect` calls the chief."""
        self._role = role
        self._settings = settings
        self._cluster = cluster
        self._loop = LoopThread("kdist-tuner")
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._wire: Wire | None = None
        self._asked_at_s = -_ASK_AGAIN_S
        self.search_dir = ""
        self.is_over = False

    def connect(self) -> None:
        """Call the chief, until it is there.

        Raises:
            TaskTimeoutError: If it does not answer within `cluster.start_timeout_s`.
            ConfigError: If it refuses this tuner.
        """
        self._loop.start()
        self._loop.spawn(self._keep_connection())
        self._wait(self._cluster.start_timeout_s + 10, "the chief of the search")

    def close(self) -> None:
        """Hang up; may be called again."""
        self._loop.stop()

    def next_trial(self, tuner: str) -> Assignment | None:
        """Ask for a trial; where there was none, not again at once."""
        if self.is_over or time.monotonic() - self._asked_at_s < _ASK_AGAIN_S:
            return None
        answer = self._call("next_trial")
        self.is_over = bool(answer["is_over"])
        if answer["assignment"] is None:
            self._asked_at_s = time.monotonic()
            return None
        return Assignment(**answer["assignment"])

    def started(self, trial: str, execution: int, run_dir: str, epoch: int, tuner: str) -> None:
        """Tell that a run begins."""
        self._call(
            "started", trial=trial, execution=execution, run_dir=run_dir, epoch=epoch, tuner=tuner
        )

    def epoch(
        self, trial: str, execution: int, epoch: int, metrics: Mapping[str, float]
    ) -> Verdict:
        """Tell what an epoch came to; return whether the run goes on."""
        answer = self._call(
            "epoch", trial=trial, execution=execution, epoch=epoch, metrics=dict(metrics)
        )
        return Verdict(answer["action"], answer["reason"])

    def ran(self, trial: str, execution: int) -> None:
        """Tell that a run came to its end."""
        self._call("ran", trial=trial, execution=execution)

    def completed(self, trial: str, pruned: str | None = None) -> None:
        """Tell that a trial is done."""
        self._call("completed", trial=trial, pruned=pruned)

    def failed(self, trial: str, reason: str) -> None:
        """Tell that a trial failed."""
        self._call("failed", trial=trial, reason=reason)

    def _call(self, kind: str, **arguments: Any) -> dict[str, Any]:
        """Return the chief's answer.

        Raises:
            PeerLostError: If the chief is gone.
            KdistError: What ended the search.
        """
        wire = self._wire
        if wire is not None:
            self._loop.call(wire.send, {"kind": kind, "arguments": arguments})
        answer = self._wait(self._cluster.heartbeat_timeout_s, "an answer of the search's chief")
        if "error" in answer:
            raise _error_of(answer)
        return answer

    def _wait(self, deadline_s: float, what: str) -> dict[str, Any]:
        try:
            heard = self._heard.get(timeout=deadline_s)
        except queue.Empty:
            raise PeerLostError(
                f"Gave up after {deadline_s:g} s waiting for {what} at {self._role.address}."
            ) from None
        if isinstance(heard, KdistError):
            self._heard.put(heard)  # Whoever asks next must hear it, too.
            raise heard
        return heard

    async def _keep_connection(self) -> None:
        """Connect, then listen and show life until the chief is gone."""
        try:
            wire, welcome = await self._connected()
        except KdistError as error:
            self._heard.put(error)
            return
        self._wire, self.search_dir = wire, str(welcome["search_dir"])
        self._heard.put(welcome)
        beat = asyncio.ensure_future(self._show_life(wire))
        try:
            while True:
                message = await wire.receive(self._cluster.heartbeat_timeout_s)
                if message["kind"] == "answer":
                    self._heard.put(message)
        except (OSError, TimeoutError, WireFault) as error:
            silent = "is silent" if isinstance(error, TimeoutError) else "is gone"
            self._heard.put(
                PeerLostError(
                    f"The chief of the search ({self._role.address}) {silent}. Start this tuner "
                    "again when the chief is back."
                )
            )
        finally:
            beat.cancel()
            wire.close()

    async def _show_life(self, wire: Wire) -> None:
        while True:
            await asyncio.sleep(min(_MAX_BEAT_S, self._cluster.heartbeat_timeout_s / 4))
            wire.send({"kind": "alive"})

    async def _connected(self) -> tuple[Wire, dict[str, Any]]:
        """Return a connection on which greetings were exchanged.

        Raises:
            TaskTimeoutError: If the chief does not answer in time.
            ConfigError: If it refuses this tuner.
        """
        end_s = time.monotonic() + self._cluster.start_timeout_s
        role, reason = self._role, "no answer"
        while time.monotonic() < end_s:
            wire = None
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(role.host, role.port, limit=MAX_MESSAGE_BYTES), 5.0
                )
                wire = Wire(reader, writer, key=self._cluster.key, is_chief=False)
                return wire, await greet_chief(wire, str(role.tuner_id), self._settings)
            except (OSError, TimeoutError, WireFault) as error:
                reason = str(error) or "no answer"
                if wire is not None:
                    wire.close()
            await asyncio.sleep(_RETRY_S)
        raise TaskTimeoutError(
            f"Gave up after {self._cluster.start_timeout_s:g} s waiting for the chief of the "
            f"search at {role.address} ({reason}). Start the same command there with "
            "KERASTUNER_TUNER_ID=chief."
        )


def _error_of(answer: Mapping[str, Any]) -> KdistError:
    kind = {ConfigError.exit_code: ConfigError, PeerLostError.exit_code: PeerLostError}
    return kind.get(answer.get("exit_code", 1), TrainingError)(str(answer["error"]))
