"""The outer loop: epochs, callbacks, validation, stopping; the same for every mode."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kdist.distribute.data.source import BatchSource
from kdist.distribute.inner_loop import InnerLoop, never_stop
from kdist.training.callback_bridge import CallbackBridge
from kdist.training.peers import Peers
from kdist.training.report.facts import EpochFacts, ProgressFacts
from kdist.training.stretches import Pace

Logs = Mapping[str, float]


class Reporter(Protocol):
    """Where progress goes; the chief's is a `RunReport`, the others' is silent."""

    @property
    def is_progress_due(self) -> bool:
        """Whether `progress` would show something now."""
        ...

    def progress(self, facts: ProgressFacts) -> None:
        """Show where training is."""
        ...

    def status(self, text: str) -> None:
        """Show a passing state."""
        ...

    def epoch(self, facts: EpochFacts) -> None:
        """Write and show what an epoch brought."""
        ...


class Silent:
    """Reports nothing: the reporter of tasks that are not the chief."""

    is_progress_due = False

    def progress(self, facts: ProgressFacts) -> None:
        """Show nothing."""

    def status(self, text: str) -> None:
        """Show nothing."""

    def epoch(self, facts: EpochFacts) -> None:
        """Show nothing."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How long to train, in batches; the same on every task.

    Attributes:
        epochs: Epochs to run.
        steps_per_epoch: Batches an epoch.
        max_steps: Batches after which training stops, or `None`.
        steps_per_call: Batches in one call of the runtime.
        replicas_in_flight: Calls that run at once (workers of an asynchronous mode).
        validation_batches: Validation batches to use, or `None` for all.
    """

    epochs: int
    steps_per_epoch: int
    max_steps: int | None = None
    steps_per_call: int = 1
    replicas_in_flight: int = 1
    validation_batches: int | None = None

    @property
    def total_steps(self) -> int:
        """Return the batches that training takes if nothing stops it."""
        total = self.epochs * self.steps_per_epoch
        return total if self.max_steps is None else min(total, self.max_steps)


@dataclass(kw_only=True)
class TrainingState:
    """What training has come to; exact in every mode."""

    batches_seen: int = 0
    examples_seen: int = 0
    num_updates: int = 0
    epochs_done: int = 0
    train_s: float = 0.0
    first_step_at_s: float | None = None
    timed_steps: int = 0
    timed_s: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    final_metrics: dict[str, float] = field(default_factory=dict)
    stop_reason: str | None = None


class Trainer:
    """Alternates stretches of steps with validation and callbacks. Every training task runs one."""

    def __init__(
        self,
        loop: InnerLoop,
        bridge: CallbackBridge,
        plan: TrainingPlan,
        *,
        validation: BatchSource | None,
        peers: Peers,
        reporter: Reporter,
        stop_requested: Callable[[], str | None] = lambda: None,
        on_epoch: Callable[[EpochFacts], None] = lambda facts: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Hold the parts; `run` does the work.

        Args:
            loop: The inner loop of the mode.
            bridge: The callbacks.
            plan: How long to train.
            validation: The validation data, if there is any.
            peers: The other training tasks.
            reporter: Where progress goes.
            stop_requested: The chief's: returns why to stop, such as "SIGTERM", or `None`.
            on_epoch: Called on every task after an epoch.
            clock: Seconds, monotonic.
        """
        self._loop = loop
        self._bridge = bridge
        self._plan = plan
        self._validation = validation
        self._peers = peers
        self._reporter = reporter
        self._stop_requested = stop_requested
        self._on_epoch = on_epoch
        self._clock = clock
        self.state = TrainingState()

    def run(self) -> TrainingState:
        """Train to the end of the plan, or until a callback or a signal stops it."""
        state, plan = self.state, self._plan
        self._bridge.train_begin()
        has_hooks = self._bridge.has_batch_hooks
        self._pace = Pace(plan.steps_per_call, plan.replicas_in_flight, has_hooks)
        while state.batches_seen < plan.total_steps and not self._bridge.stop_training:
            self._run_epoch()
            if state.stop_reason is not None:
                break
        averaged = [optimizer.finalize() for optimizer in self._loop.store.optimizers]
        self._bridge.train_end(state.metrics)
        if any(averaged) or self._bridge.weights_changed:
            state.final_metrics = self._evaluate() if self._validation is not None else {}
        return state

    def _run_epoch(self) -> None:
        state, plan = self.state, self._plan
        epoch = state.epochs_done
        self._loop.reset_logs()
        self._bridge.epoch_begin(epoch)
        num_steps = min(plan.steps_per_epoch, plan.total_steps - state.batches_seen)
        seconds = self._train_epoch(epoch, num_steps)
        sums = self._loop.read_logs()
        logs = self._loop.logs.results(sums)
        state.train_s += seconds
        if state.stop_reason is None and self._validation is not None:
            self._bridge.weights_changed = False
            self._bridge.test_begin()
            validated = self._evaluate()
            num_batches = plan.validation_batches or self._validation.batches_per_pass or 1
            self._bridge.test_end(
                num_batches - 1, {k.removeprefix("val_"): v for k, v in validated.items()}
            )
            logs |= validated
            self._bridge.weights_changed = False
        state.metrics = logs
        state.epochs_done += 1
        learning_rate = self._bridge.view.learning_rate
        self._bridge.epoch_end(epoch, logs)
        facts = EpochFacts(
            epoch=epoch + 1,
            global_step=state.num_updates,
            batches_seen=state.batches_seen,
            seconds=seconds,
            examples=self._loop.logs.num_examples(sums),
            metrics=logs,
            learning_rate=learning_rate,
        )
        self._reporter.epoch(facts)
        self._on_epoch(facts)

    def _train_epoch(self, epoch: int, num_steps: int) -> float:
        """Run the steps of one epoch; return the seconds they took."""
        state = self.state
        begun, done = self._clock(), 0
        examples_before = state.examples_seen
        while done < num_steps and state.stop_reason is None:
            size = min(self._pace.next_steps, num_steps - done)
            started = self._clock()
            sums = self._run_stretch(done, size)
            done += size
            state.batches_seen += size
            state.examples_seen = examples_before + self._loop.logs.num_examples(sums)
            state.num_updates = self._loop.store.num_updates
            elapsed = self._clock() - started
            if state.first_step_at_s is None:
                state.first_step_at_s = self._clock()
            else:
                state.timed_steps += size
                state.timed_s += elapsed
            self._pace.observe(size, elapsed)
            self._report(epoch, done, num_steps, sums)
            self._agree_to_stop()
            if self._bridge.stop_training and self._bridge.has_batch_hooks:
                break
        return self._clock() - begun

    def _run_stretch(self, done: int, size: int) -> Any:
        """Run steps and return the epoch's sums so far: reading them waits for the last step."""
        plan, bridge = self._plan, self._bridge
        first = self.state.batches_seen
        calls = range(done, done + size, plan.steps_per_call)
        if bridge.has_batch_hooks:
            for step in calls:
                bridge.batch_begin(step)
        self._loop.train(first, size, steps_per_call=plan.steps_per_call, on_progress=never_stop)
        sums = self._loop.read_logs()
        if bridge.has_batch_hooks:
            logs = self._loop.logs.results(sums)
            for step in calls:
                bridge.batch_end(min(step + plan.steps_per_call, done + size) - 1, logs)
        return sums

    def _agree_to_stop(self) -> None:
        """Let all tasks stop at one step; the chief's clock sets the length of stretches."""
        self._peers.check()
        decision = self._peers.agree(
            {
                "stop": self._stop_requested(),
                "steps": self._pace.next_steps,
                "stop_training": self._bridge.stop_training,
            }
        )
        self._pace.next_steps = decision["steps"]
        self.state.stop_reason = decision["stop"]
        self._bridge.agree_on_stop(decision["stop_training"])

    def _report(self, epoch: int, done: int, num_steps: int, sums: Any) -> None:
        if not self._reporter.is_progress_due:
            return
        state, plan = self.state, self._plan
        logs = {} if self._loop.logs.is_empty(sums) else self._loop.logs.results(sums)
        speed = state.timed_steps / state.timed_s if state.timed_s else None
        examples = self._loop.logs.num_examples(sums)
        self._reporter.progress(
            ProgressFacts(
                epoch=epoch + 1,
                epochs=plan.epochs,
                step=done,
                steps_per_epoch=num_steps,
                metrics=logs,
                steps_per_second=speed,
                examples_per_second=speed * examples / done if speed else None,
                eta_s=(plan.total_steps - state.batches_seen) / speed if speed else None,
            )
        )

    def _evaluate(self) -> dict[str, float]:
        assert self._validation is not None
        self._reporter.status("validating")
        sums = self._loop.evaluate(self._validation, self._plan.validation_batches)
        return {f"val_{name}": value for name, value in self._loop.logs.results(sums).items()}
