"""What the outer loop tells whoever keeps its state."""

from typing import Protocol

from kdist.distribute import keras_adapter
from kdist.distribute.loops.inner_loop import Store
from kdist.distribute.values import to_numpy
from kdist.training.report.facts import EpochFacts


class Keeper(Protocol):
    """The chief's writes checkpoints, the others' do nothing.

    Each method is called between two stretches of steps, with nothing under way. What cannot be
    written is raised as an error, here or at a later call.
    """

    def begin(self) -> None:
        """Callbacks have heard that training begins; what they hold now are their settings."""
        ...

    def after_stretch(self) -> None:
        """Steps were done, and the epoch goes on."""
        ...

    def before_epoch_end(self) -> None:
        """All steps of an epoch are done; its validation and its callbacks come next."""
        ...

    def after_epoch(self, facts: EpochFacts) -> None:
        """An epoch has ended, its validation and its callbacks included."""
        ...

    def cut(self) -> None:
        """Training ends inside an epoch, which a run that goes on takes up again.

        After `before_epoch_end`: where training was then, since a validation was abandoned.
        """
        ...

    def at_end(self) -> None:
        """Training is over; averages and callbacks may change weights from here on."""
        ...

    def after_failure(self, error: Exception) -> None:
        """Training ends by an error; never raises."""
        ...


class KeepsNothing:
    """The keeper of tasks that are not the chief, and of runs without checkpoints."""

    def begin(self) -> None:
        """Keep nothing."""

    def after_stretch(self) -> None:
        """Keep nothing."""

    def before_epoch_end(self) -> None:
        """Keep nothing."""

    def after_epoch(self, facts: EpochFacts) -> None:
        """Keep nothing."""

    def cut(self) -> None:
        """Keep nothing."""

    def at_end(self) -> None:
        """Keep nothing."""

    def after_failure(self, error: Exception) -> None:
        """Keep nothing."""


def num_applies(store: Store) -> int | None:
    """Return how many steps the optimizer has taken; `None` where it leaves some out."""
    optimizer = store.optimizers[0]
    if optimizer.inner is not optimizer.optimizer:  # A loss scale skips steps that overflow.
        return None
    return int(to_numpy(keras_adapter.own_iterations(optimizer.inner)))
