"""The control channel of every task but the chief: it listens on its own port, then obeys."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from kdist.cluster import control_config
from kdist.cluster.control_hello import Identity
from kdist.cluster.control_listener import ChiefEndedError, Hearing, Listener
from kdist.cluster.control_sockets import open_listener
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task
from kdist.errors import PeerLostError, TaskTimeoutError


class ControlPeer:
    """Waits for the chief's call, hears its decisions, and knows when it has ended or vanished.

    All public methods are for the main thread. Callbacks run on the channel's own thread, also
    while TensorFlow holds the main one.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        task: Task,
        config_flat: Mapping[str, Any],
        *,
        start_timeout_s: float,
        lost_timeout_s: float,
        say: Callable[[str], None],
        key: str | None = None,
        say_every_s: float = 5.0,
        on_lost: Callable[[PeerLostError], None] = lambda error: None,
        on_ended: Callable[[int], None] = lambda exit_code: None,
    ) -> None:
        """Remember what to do; nothing is opened yet.

        Args:
            spec: Who takes part.
            task: This task.
            config_flat: What must be the same on all tasks; values that JSON can hold.
            start_timeout_s: How long `rendezvous` waits for the chief's call. Once the chief has
                called, it is the chief that waits.
            lost_timeout_s: How long the chief may stay silent, or gone, without having
                ended the run, once it is ready; before, it is `start_timeout_s`, since
                TensorFlow's start may block all of its threads.
            say: Takes one line for the user.
            key: Signs all messages (`cluster.key`); all tasks must have the same.
            say_every_s: How often `rendezvous` says whom it waits for.
            on_lost: Told once, when the chief counts as lost.
            on_ended: Told once, with the chief's exit code, when the chief ends the run.
        """
        self._spec = spec
        self._task = task
        self._start_timeout_s = start_timeout_s
        self._say = say
        self._say_every_s = say_every_s
        self._hearing = Hearing()
        config = control_config.comparable(config_flat, spec)
        self._listener = Listener(
            self._hearing,
            own=Identity(task, control_config.digest(config), lost_timeout_s),
            chief=spec.chief,
            config=config,
            key=key,
            start_timeout_s=start_timeout_s,
            on_lost=on_lost,
            on_ended=on_ended,
        )

    def rendezvous(self) -> None:
        """Listen on this task's own port until the chief says go; the port is free again then.

        Raises:
            EnvironmentFault: If the port is in use.
            ConfigError: If the tasks' configurations differ.
            TaskTimeoutError: If the chief did not call in time, or gave up on another task.
        """
        listener = open_listener(self._task, self._spec.address(self._task))
        self._hearing.loop.start()
        self._hearing.loop.spawn(self._listener.serve(listener))
        try:
            self._wait_for_go()
        except BaseException:
            self.close()
            raise

    def receive_decision(self, deadline_s: float) -> Any:
        """Return the chief's next decision, in the order in which they were sent.

        Args:
            deadline_s: Seconds from now.

        Raises:
            PeerLostError: If the chief is lost.
            ChiefEndedError: If the chief ended the run instead; carries its exit code.
            TaskTimeoutError: If nothing came in time.
        """
        hearing = self._hearing
        self._wait(lambda: bool(hearing.decisions) or hearing.exit_code is not None, deadline_s)
        with hearing.changed:
            if hearing.decisions:
                return hearing.decisions.popleft()
            if hearing.exit_code is not None:
                raise ChiefEndedError(
                    f"{self._spec.chief} ended the run with exit code {hearing.exit_code}.",
                    hearing.exit_code,
                )
        raise TaskTimeoutError(
            f"Gave up after {deadline_s:g} s waiting for a decision of {self._spec.chief}."
        )

    def ready(self) -> None:
        """Tell the chief that the start is over: from here on silence means a loss."""
        self._hearing.loop.call_now(lambda: self._send({"kind": "ready"}))

    def finished(self) -> None:
        """Tell the chief that this task needs nobody any more."""
        self._hearing.loop.call(lambda: self._send({"kind": "finished"}))

    def ask_to_stop(self, reason: str) -> None:
        """Ask the chief to let all tasks stop; it decides when. Safe in a signal handler."""
        self._hearing.loop.call(lambda: self._send({"kind": "stop", "reason": reason}))

    def wait_done(self) -> int:
        """Wait until the chief ends the run, and return its exit code.

        Bounded by the chief's life: while it shows that it lives, this waits.

        Raises:
            PeerLostError: If the chief is lost.
        """
        self._wait(lambda: self._hearing.exit_code is not None, None)
        exit_code = self._hearing.exit_code
        assert exit_code is not None
        return exit_code

    def close(self) -> None:
        """End the channel on this side; may be called again, and before `rendezvous`."""
        self._hearing.loop.stop()

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._hearing.wire is not None:
            self._hearing.wire.send(message)

    def _wait(self, is_reached: Callable[[], bool], deadline_s: float | None) -> None:
        """Wait for a fact or the deadline; raise what ended this task meanwhile."""
        end_s = None if deadline_s is None else time.monotonic() + deadline_s
        hearing = self._hearing
        with hearing.changed:
            while not is_reached():
                if hearing.error is not None:
                    raise hearing.error
                left_s = None if end_s is None else end_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return
                hearing.changed.wait(left_s)

    def _wait_for_go(self) -> None:
        hearing, chief = self._hearing, self._spec.chief
        address = self._spec.address(chief)
        alone_since_s = time.monotonic()
        say_s = alone_since_s + self._say_every_s
        while True:
            with hearing.changed:
                if hearing.error is not None:
                    raise hearing.error
                if hearing.has_gone:
                    return
                is_alone, note = hearing.wire is None, hearing.turned_away
                awaited = hearing.awaited
            now_s = time.monotonic()
            waiting_for = f"{chief} ({address}) to call" if is_alone else awaited
            waiting_for += f" ({note})" if is_alone and note else ""
            if not is_alone:
                alone_since_s = now_s
            elif now_s >= alone_since_s + self._start_timeout_s:
                raise TaskTimeoutError(
                    f"Gave up after {self._start_timeout_s:g} s (cluster.start_timeout_s) waiting "
                    f"for {waiting_for}. Start every task with the same arguments, and check "
                    "their logs and addresses."
                )
            if now_s >= say_s and waiting_for:
                say_s = now_s + self._say_every_s
                self._say(f"{self._task}: waiting for {waiting_for}")
            with hearing.changed:
                hearing.changed.wait(0.1)
