"""The outer loop: epochs, callbacks, validation, stopping; the same for every mode."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from kdist.distribute.data.source import BatchSource
from kdist.distribute.loops.inner_loop import InnerLoop, never_stop
from kdist.training.callback_bridge import CallbackBridge
from kdist.training.keeper import Keeper, KeepsNothing, num_applies
from kdist.training.peers import Peers
from kdist.training.plan import TrainingPlan, TrainingState
from kdist.training.report.facts import EpochFacts
from kdist.training.reporter import Reporter, Silent, epoch_facts, progress_facts
from kdist.training.stretches import Pace
from kdist.training.validation import Validation

__all__ = ["Reporter", "Silent", "Trainer", "TrainingPlan", "TrainingState"]


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
        on_stretch: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Hold the parts.

        Args:
            loop: The inner loop of the mode.
            bridge: The callbacks.
            plan: How long to train.
            validation: The validation data, if there is any.
            peers: The other training tasks.
            reporter: Where progress goes.
            stop_requested: The chief's: returns why to stop, such as "SIGTERM", or `None`.
            on_epoch: Called on every task after an epoch.
            on_stretch: Called on every task after each stretch of steps.
            clock: Seconds, monotonic.
        """
        self._loop = loop
        self._bridge = bridge
        self._plan = plan
        self._validation = None
        if validation is not None:
            self._validation = Validation(
                loop,
                bridge,
                validation,
                plan.validation_batches,
                agree_to_stop=self._agree_to_stop,
                on_begin=lambda: self._reporter.status("validating"),
                clock=clock,
            )
        self._peers = peers
        self._reporter = reporter
        self._stop_requested = stop_requested
        self._on_epoch = on_epoch
        self._on_stretch = on_stretch
        self._clock = clock
        self._restore: Callable[[], None] | None = None
        self._is_between_steps = True
        self._num_applies: int | None = None
        self._examples_before = 0
        self.keeper: Keeper = KeepsNothing()
        self.state = TrainingState()

    def go_on_from(self, state: TrainingState, restore: Callable[[], None]) -> None:
        """Begin where an earlier attempt was. Every training task calls it, before `run`.

        Args:
            state: Where that was.
            restore: Gives store, sums and callbacks what they held there. Called once `run` has
                told the callbacks that training begins: what they do then does not count again.
        """
        self.state = state
        self._restore = restore

    def run(self) -> TrainingState:
        """Train to the end of the plan, or until a callback or a signal stops it."""
        state = self.state
        try:
            self._train()
        except Exception as error:
            if self._is_between_steps or self._has_counted_rest():
                self.keeper.after_failure(error)
            raise
        self.keeper.at_end()
        averaged = [optimizer.finalize() for optimizer in self._loop.store.optimizers]
        self._bridge.train_end(state.metrics)
        if (any(averaged) or self._bridge.weights_changed) and state.stop_reason is None:
            state.final_metrics = self._validation.evaluate() if self._validation else {}
        return state

    def _train(self) -> None:
        state, plan = self.state, self._plan
        self._bridge.train_begin()
        self.keeper.begin()
        if self._restore is not None:
            if state.step_in_epoch:
                self._bridge.epoch_begin(state.epochs_done)
            self._restore()
        has_hooks = self._bridge.has_batch_hooks
        self._pace = Pace(plan.steps_per_call, plan.replicas_in_flight, has_hooks)
        may_stop = self._restore is not None  # Keras looks for the first time after a call.
        while state.batches_seen < plan.total_steps or state.step_in_epoch:
            if may_stop and self._bridge.stop_training and not state.step_in_epoch:
                break
            self._run_epoch()
            may_stop = True
            if state.stop_reason is not None:
                break

    def _run_epoch(self) -> None:
        state, plan = self.state, self._plan
        left = plan.total_steps - state.batches_seen + state.step_in_epoch
        planned = min(plan.steps_per_epoch, left)
        if not state.step_in_epoch:
            self._loop.reset_logs()
            self._bridge.epoch_begin(state.epochs_done)
            if self._bridge.stop_training:  # Keras looks only once a call is over.
                planned = min(planned, plan.steps_per_call)
        self._train_epoch(planned)
        is_short = left < plan.steps_per_epoch and not self._bridge.stop_training
        is_cut = is_short or state.stop_reason is not None
        if is_cut:
            self.keeper.cut()
        else:
            self.keeper.before_epoch_end()
        sums = self._loop.read_logs()
        logs = self._loop.logs.results(sums)
        if state.stop_reason is None and self._validation is not None:
            logs |= self._validation.run()
            if state.stop_reason is not None and not is_cut:
                is_cut = True
                self.keeper.cut()
        epoch, learning_rate = state.epochs_done, self._bridge.view.learning_rate
        state.metrics = logs
        written = self._bridge.epoch_end(epoch, logs)
        state.metrics = logs | {k: v for k, v in written.items() if k != "learning_rate"}
        is_whole = state.step_in_epoch >= planned and self._validation is None
        cut_of = None if state.stop_reason is None or is_whole else planned
        seconds = state.epoch_s
        state.train_s += seconds
        state.epochs_done, state.step_in_epoch, state.epoch_s = epoch + 1, 0, 0.0
        num_examples = self._loop.logs.num_examples(sums)
        facts = epoch_facts(state, seconds, num_examples, learning_rate, cut_of)
        self._reporter.epoch(facts)
        self._on_epoch(facts)
        if not is_cut:
            self.keeper.after_epoch(facts)

    def _has_counted_rest(self) -> bool:
        """Count the steps of a stretch that an error ended; return whether they can be counted."""
        done = None
        with contextlib.suppress(Exception):  # Servers that are lost cannot be asked.
            done = num_applies(self._loop.store) if self._loop.is_settled else None
        if done is None or self._num_applies is None:
            return False
        state, size = self.state, done - self._num_applies
        state.batches_seen += size
        state.step_in_epoch += size
        state.num_updates = self._loop.store.num_updates
        state.examples_seen = self._examples_before + self._loop.logs.num_examples(
            self._loop.read_logs()
        )
        return True

    def _train_epoch(self, num_steps: int) -> None:
        """Run the steps of one epoch that are left, up to `num_steps` of it."""
        state = self.state
        begun_s = self._clock() - state.epoch_s
        before = self._loop.logs.num_examples(self._loop.read_logs()) if state.step_in_epoch else 0
        self._examples_before = state.examples_seen - before
        while not self._is_epoch_over(num_steps):
            wanted = min(self._pace.next_steps, num_steps - state.step_in_epoch)
            size = self._plan.stretch(state.batches_seen, wanted)
            started_s = self._clock()
            size, sums = self._run_stretch(size)
            elapsed_s = self._clock() - started_s
            if state.first_step_at_s is None:
                state.first_step_at_s = self._clock()
            else:
                state.timed_steps += size
                state.timed_s += elapsed_s
            self._pace.observe(size, elapsed_s)
            self._report(num_steps, sums)
            self._on_stretch()
            self._agree_to_stop(self._pace)
            if not self._is_epoch_over(num_steps):
                state.epoch_s = self._clock() - begun_s
                self.keeper.after_stretch()
        state.epoch_s = self._clock() - begun_s

    def _is_epoch_over(self, num_steps: int) -> bool:
        state, bridge = self.state, self._bridge
        is_stopped = bridge.stop_training and bridge.has_batch_hooks and state.step_in_epoch > 0
        return is_stopped or state.step_in_epoch >= num_steps or state.stop_reason is not None

    def _run_stretch(self, size: int) -> tuple[int, Any]:
        """Run steps, fewer on a signal where one task decides; return how many, and the sums."""
        plan, bridge, state = self._plan, self._bridge, self.state
        done = state.step_in_epoch
        calls = range(done, done + size, plan.steps_per_call)
        if bridge.has_batch_hooks:
            for step in calls:
                bridge.batch_begin(step)
        self._num_applies = num_applies(self._loop.store)
        self._is_between_steps = False
        decides_alone = plan.replicas_in_flight > 1 and not bridge.has_batch_hooks
        on_progress = self._should_stop if decides_alone else never_stop
        size = self._loop.train(
            state.batches_seen, size, steps_per_call=plan.steps_per_call, on_progress=on_progress
        )
        sums = self._loop.read_logs()
        state.batches_seen += size
        state.step_in_epoch += size
        state.examples_seen = self._examples_before + self._loop.logs.num_examples(sums)
        state.num_updates = self._loop.store.num_updates
        self._is_between_steps = True
        if bridge.has_batch_hooks:
            logs = self._loop.logs.results(sums)
            for step in calls:
                bridge.batch_end(min(step + plan.steps_per_call, done + size) - 1, logs)
        return size, sums

    def _should_stop(self, num_done: int) -> bool:
        del num_done
        return self._stop_requested() is not None

    def _agree_to_stop(self, pace: Pace) -> bool:
        """Let all tasks stop at one place; the chief's clock sets the length of stretches."""
        self._peers.check()
        decision = self._peers.agree(
            {
                "stop": self._stop_requested(),
                "steps": pace.next_steps,
                "stop_training": self._bridge.stop_training,
            }
        )
        pace.next_steps = decision["steps"]
        self.state.stop_reason = decision["stop"]
        self._bridge.agree_on_stop(decision["stop_training"])
        return self.state.stop_reason is not None

    def _report(self, num_steps: int, sums: Any) -> None:
        if not self._reporter.is_progress_due:
            return
        logs = self._loop.logs
        metrics = {} if logs.is_empty(sums) else logs.results(sums)
        examples = logs.num_examples(sums)
        facts = progress_facts(self.state, self._plan, num_steps, metrics, examples)
        self._reporter.progress(facts)
