"""The chief's end of the control channel: it calls every other task, and hears of their losses."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kdist.cluster import control_config
from kdist.cluster.control_caller import Caller, TaskCallback
from kdist.cluster.control_hello import Identity
from kdist.cluster.control_roster import Roster, named, with_tasks
from kdist.cluster.control_sockets import open_listener
from kdist.cluster.control_wire import encode
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.errors import ConfigError, KdistError, PeerLostError, TaskTimeoutError

_GOING_DEADLINE_S = 15.0
_GOODBYE_DEADLINE_S = 5.0
_COLLECT_FAULTS_S = 2.0
_EXITS_OF_SIGNALS = (130, 143)  # SIGINT, SIGTERM: all tasks end with the chief's.


class ControlChief:
    """Brings the tasks together, tells them decisions, notices who is lost, ends them.

    All public methods are for the main thread. `rendezvous` comes first; `done` comes last, also
    after a failure. Callbacks run on the channel's own thread and must not block it.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        config_flat: Mapping[str, Any],
        *,
        start_timeout_s: float,
        lost_timeout_s: float,
        say: Callable[[str], None],
        key: str | None = None,
        say_every_s: float = 5.0,
        rejoins: Collection[TaskType] = (),
        on_lost: TaskCallback = lambda task: None,
        on_rejoined: TaskCallback = lambda task: None,
    ) -> None:
        """Remember what to do; nothing is opened yet.

        Args:
            spec: Who takes part.
            config_flat: What must be the same on all tasks; values that JSON can hold.
            start_timeout_s: How long `rendezvous` waits for all, and how long a peer may stay
                silent before it is ready: TensorFlow's start may block all of its threads.
            lost_timeout_s: How long a peer may stay silent then before it counts as lost.
            say: Takes one line for the user.
            key: Signs all messages (`cluster.key`); all tasks must have the same.
            say_every_s: How often `rendezvous` says whom it waits for.
            rejoins: Task types that are called again after a loss, so that a restarted one
                takes part again.
            on_lost: Told of each lost task, once a loss.
            on_rejoined: Told of each task that is back.
        """
        self._spec = spec
        self._chief = spec.chief
        self._config = control_config.comparable(config_flat, spec)
        self._start_timeout_s = start_timeout_s
        self._say = say
        self._say_every_s = say_every_s
        self._roster = Roster(spec)
        self._caller = Caller(
            self._roster,
            own=Identity(self._chief, control_config.digest(self._config), lost_timeout_s),
            key=key,
            start_timeout_s=start_timeout_s,
            rejoins=rejoins,
            on_lost=on_lost,
            on_rejoined=on_rejoined,
        )

    @property
    def lost_peers(self) -> tuple[Task, ...]:
        """Every loss since the start, in order; a task that was lost twice stands twice."""
        with self._roster.changed:
            return tuple(self._roster.losses)

    @property
    def missing_peers(self) -> tuple[Task, ...]:
        """Tasks that are lost and have not come back."""
        with self._roster.changed:
            return tuple(peer.task for peer in self._roster.peers if peer.is_lost)

    @property
    def starting_peers(self) -> tuple[Task, ...]:
        """Tasks that are not ready yet, or not again."""
        with self._roster.changed:
            return tuple(peer.task for peer in self._roster.peers if not peer.is_ready)

    def is_silent(self, task: Task) -> bool:
        """Whether a lost task is still connected, but shows no sign of life."""
        with self._roster.changed:
            return any(p.task == task and p.is_lost and p.is_silent for p in self._roster.peers)

    @property
    def stop_reason(self) -> str | None:
        """Why a peer has asked to stop, such as "SIGTERM"; `None` if none has."""
        return self._roster.stop_reason

    def rendezvous(self) -> None:
        """Wait until every task is there, then let all of them start their TensorFlow servers.

        Holds this task's own port meanwhile; afterwards it is free for TensorFlow.

        Raises:
            EnvironmentFault: If this task's own port is in use.
            ConfigError: If tasks were started with other configurations, or as other tasks.
            TaskTimeoutError: If a task is missing after the start timeout, naming it.
            PeerLostError: If a task was there and vanished in the last moment.
        """
        roster = self._roster
        if not roster.peers:
            return
        roster.loop.start()
        for peer in roster.peers:
            roster.loop.spawn(self._caller.attend(peer))
        roster.loop.spawn(self._caller.keep_alive())
        try:
            own_address = self._spec.address(self._chief)
            with open_listener(self._chief, own_address, is_listening=False):
                self._wait_for_all()
            self._go()
        except BaseException as error:
            self._abort(error)
            raise

    def ready(self) -> None:
        """Tell every task that the start is over: from here on silence means a loss."""
        self._roster.is_ready = True
        self._roster.send_all({"kind": "ready"})

    def broadcast(self, decision: Any) -> None:
        """Send a decision (anything JSON can hold) to every task that is not lost.

        Raises:
            TrainingError: If it is too long.
        """
        message = {"kind": "decision", "decision": decision}
        encode(message)
        self._roster.send_all(message)

    def wait_finished(self, deadline_s: float, tasks: Collection[Task] | None = None) -> None:
        """Wait until tasks have said that they are finished: nobody leaves before the others.

        Args:
            deadline_s: Seconds from now.
            tasks: Whom to wait for; all others, unless given.

        Raises:
            PeerLostError: If one of them is lost, naming it.
            TaskTimeoutError: If one of them is not finished in time, naming it.
        """
        awaited = with_tasks(self._roster.peers, tasks)

        def is_settled() -> bool:
            waiting = [peer for peer in awaited if not peer.is_finished]
            return not waiting or any(peer.is_lost for peer in waiting)

        is_in_time = self._wait(is_settled, deadline_s)
        if lost := [peer for peer in awaited if peer.is_lost and not peer.is_finished]:
            raise PeerLostError(f"Lost before the end: {named(lost)}.")
        if not is_in_time:
            waiting = [peer for peer in awaited if not peer.is_finished]
            raise TaskTimeoutError(
                f"Gave up after {deadline_s:g} s waiting for the end of {named(waiting)}."
            )

    def done(self, exit_code: int) -> None:
        """Tell every task that the run has ended, and how; returns when they have heard it.

        May be called again, and where `rendezvous` failed: then it does nothing.
        """
        self._part({"kind": "done", "exit_code": exit_code})

    def _wait_for_all(self) -> None:
        start_s = time.monotonic()
        say_s, give_up_s = start_s + self._say_every_s, start_s + self._start_timeout_s
        faults_end_s = None
        peers = self._roster.peers
        while True:
            missing = [peer for peer in peers if peer.wire is None and not peer.is_unfit]
            now_s = time.monotonic()
            if any(peer.is_unfit for peer in peers):
                faults_end_s = faults_end_s or now_s + _COLLECT_FAULTS_S
                if not missing or now_s >= faults_end_s:
                    raise ConfigError(self._describe_faults())
            elif not missing:
                return
            if now_s >= give_up_s:
                raise TaskTimeoutError(
                    f"Gave up after {self._start_timeout_s:g} s (cluster.start_timeout_s) waiting "
                    f"for {named(missing)}. Start every task with the same arguments, and check "
                    "their logs and addresses."
                )
            if now_s >= say_s:
                say_s = now_s + self._say_every_s
                self._say(f"{self._chief}: waiting for {named(missing)}")
                self._roster.send_all({"kind": "waiting", "for": named(missing)})
            with self._roster.changed:
                self._roster.changed.wait(0.1)

    def _describe_faults(self) -> str:
        peers = self._roster.peers
        faults = [peer.fault for peer in peers if peer.fault]
        if others := {peer.task: peer.config for peer in peers if peer.config is not None}:
            faults.append(control_config.describe_differences(self._chief, self._config, others))
        return " ".join(faults)

    def _go(self) -> None:
        roster = self._roster
        with roster.changed:
            roster.has_gone = True
        roster.send_all({"kind": "go"})
        self._wait(
            lambda: all(peer.is_going or peer.is_lost for peer in roster.peers), _GOING_DEADLINE_S
        )
        if lost := [peer for peer in roster.peers if not peer.is_going]:
            raise PeerLostError(f"Lost at the start: {named(lost)}.")

    def _abort(self, error: BaseException) -> None:
        told: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
        if not isinstance(error, KdistError):
            told = {"type": "TrainingError", "message": f"{self._chief} failed before the start."}
        if (exit_code := getattr(error, "exit_code", None)) in _EXITS_OF_SIGNALS:
            told = {
                "message": f"{self._chief} was stopped before the start.",
                "exit_code": exit_code,
            }
        self._part({"kind": "abort", **told})

    def _part(self, message: Mapping[str, Any]) -> None:
        """Send a last message, and wait a little until everybody has confirmed it."""
        roster = self._roster
        with roster.changed:
            if roster.is_over:
                return
            roster.is_over = True
        roster.send_all(message)
        self._wait(
            lambda: all(peer.wire is None or peer.said_goodbye for peer in roster.peers),
            _GOODBYE_DEADLINE_S,
        )
        roster.loop.stop()

    def _wait(self, is_reached: Callable[[], bool], deadline_s: float) -> bool:
        return self._roster.wait_until(is_reached, time.monotonic() + deadline_s, time.monotonic)
