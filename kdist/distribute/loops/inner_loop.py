"""What the outer loop may ask of an inner loop: exact numbers of steps, sums, evaluations."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from kdist.distribute.buckets.spilled import KeptTable
from kdist.distribute.data.source import BatchSource

# Called with the number of steps done since `train` began; returns whether to stop early.
OnProgress = Callable[[int], bool]
# Called by all training tasks with the batches that an evaluation has done together, from 0 on;
# returns about how many to do until the next call, or 0 to end the evaluation there.
NextBatches = Callable[[int], int]


def never_stop(num_done: int) -> bool:
    """Go on to the last step."""
    del num_done
    return False


def all_at_once(num_done: int) -> int:
    """Evaluate whatever there is without looking up."""
    del num_done
    return 1 << 60


class Store(Protocol):
    """The place where the values live while a model trains."""

    def write_to_model(self) -> None:
        """Give the model's variables the store's values."""
        ...

    def write_states_to_model(self) -> None:
        """Give the model's non-trainable variables the store's values."""
        ...

    def read_from_model(self) -> bool:
        """Take over what somebody wrote into the model; return whether anything differed."""
        ...

    @property
    def kept_tables(self) -> list[KeptTable]:
        """Return the tables whose values the model is never given."""
        ...

    def take_from_chief(self, *, with_optimizer: bool = False) -> None:
        """Replace this task's values by the chief's; all training tasks call it together.

        Args:
            with_optimizer: Slots and counters of the optimizer, too.
        """
        ...

    @property
    def num_updates(self) -> int:
        """Return the optimizer updates that reached the model."""
        ...

    @property
    def optimizers(self) -> list[Any]:
        """Return the `StoreOptimizer`s, one for each place that holds buckets."""
        ...


class OwnState(Protocol):
    """State that steps change and that neither the store nor the model's variables hold."""

    def make_variables(self, sums: Mapping[str, np.ndarray]) -> None:
        """Make what only a first step makes, before values are restored: they come to nothing.

        Args:
            sums: What `InnerLoop.restore_sums` will be given.
        """
        ...

    def capture_own(self) -> dict[str, np.ndarray]:
        """Return it between two stretches of steps."""
        ...

    def restore_own(self, values: Mapping[str, np.ndarray]) -> bool:
        """Go on from what was captured; return whether it fits."""
        ...


class LogReader(Protocol):
    """Turns what a loop summed up, in whatever form it keeps it, into results."""

    def results(self, sums: Any) -> dict[str, float]:
        """Return loss and metrics by name."""
        ...

    def num_examples(self, sums: Any) -> int:
        """Return the exact number of rows behind the sums."""
        ...

    def is_empty(self, sums: Any) -> bool:
        """Return whether no batch was counted yet."""
        ...


class InnerLoop(Protocol):
    """Runs steps; one implementation for each way of driving replicas.

    Attributes:
        is_settled: Whether, after `train` has raised, the steps that were applied are the first
            ones of those asked for, one update each, and no other is under way.
    """

    is_settled: bool

    @property
    def store(self) -> Store:
        """Return the place where the values live."""
        ...

    @property
    def logs(self) -> LogReader:
        """Return what turns sums into named results."""
        ...

    def train(
        self, first_step: int, num_steps: int, *, steps_per_call: int, on_progress: OnProgress
    ) -> int:
        """Run steps `[first_step, first_step + num_steps)`; return how many were run.

        Args:
            first_step: Counts batches since the beginning of training.
            num_steps: Fewer are run only if `on_progress` asks to stop.
            steps_per_call: Steps in one call of the runtime.
            on_progress: Called now and then, and after the last step.
        """
        ...

    def read_logs(self) -> Any:
        """Return the sums since `reset_logs`, for `logs` to read."""
        ...

    def reset_logs(self) -> None:
        """Forget the sums; an epoch begins."""
        ...

    def capture_sums(self) -> dict[str, np.ndarray]:
        """Return what `restore_sums` needs to go on from here, between two stretches of steps."""
        ...

    def restore_sums(self, sums: Mapping[str, np.ndarray]) -> bool:
        """Go on in the middle of an epoch; every training task calls it.

        Args:
            sums: What `capture_sums` returned, in this mode or in another.

        Returns:
            Whether they fit; if not, the sums are left as they are.
        """
        ...

    def evaluate(
        self,
        source: BatchSource,
        num_batches: int | None,
        next_batches: NextBatches = all_at_once,
    ) -> Any:
        """Return the exact sums over the first batches of a pass.

        Args:
            source: The data.
            num_batches: Batches to use; `None` for all.
            next_batches: Asked while batches are left. If it ends the evaluation, the sums are
                those of the batches done.
        """
        ...
