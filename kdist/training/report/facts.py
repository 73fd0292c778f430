"""The facts that reports are made of. Frozen values, filled by the training loop on the chief."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


class Terminal(Protocol):
    """What the launcher saw of the user's terminal; the chief's own stdout is a pipe."""

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at a terminal that understands cursor movements."""
        ...

    @property
    def width(self) -> int:
        """Columns of that terminal."""
        ...

    @property
    def color(self) -> bool:
        """Whether colors are welcome."""
        ...


@dataclass(frozen=True, kw_only=True)
class Block:
    """What lies together on a server: a large variable, rows of one, or many small ones."""

    label: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class ServerContents:
    """One parameter server and what it holds."""

    name: str
    blocks: tuple[Block, ...]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all values, without optimizer slots."""
        return sum(block.num_bytes for block in self.blocks)


@dataclass(frozen=True, kw_only=True)
class OpeningFacts:
    """What is known before the first step.

    Attributes:
        mode_line: The mode in words, such as `ps in-graph async, 2 workers, 2 ps`.
        choice_line: Why this strategy was taken.
        tasks: One text a task, such as `worker-1 127.0.0.1:41235`.
        devices: One text a device that computes.
        num_replicas: Replicas that compute gradients.
        global_batch_size: Examples a batch; `None` where the data brings its own batches.
        per_replica_batch_sizes: Examples a replica takes of a full batch, by replica index.
        num_parameters: Trainable and non-trainable numbers of the model.
        parameter_bytes: Their size.
        store_lines: Where the parameters live, one line a server or bucket group.
        servers: Every parameter server with what it holds; empty where there are none.
        train_examples: Training examples in one epoch; `None` where nobody can know.
        validation_examples: The same for validation; `None` also without validation.
        steps_per_epoch: Batches an epoch; `None` where nobody can know.
        epochs: Epochs that the run is meant to take.
        run_dir: The run folder.
        open_ports: Ports that TensorFlow servers of this run listen on, such as `worker-0:41235`.
        notes: Things the user should know, one sentence each.
        settings: Hyperparameters by dotted key, for comparing runs.
    """

    mode_line: str
    choice_line: str
    tasks: tuple[str, ...]
    devices: tuple[str, ...]
    num_replicas: int
    global_batch_size: int | None
    per_replica_batch_sizes: tuple[int, ...] = ()
    num_parameters: int
    parameter_bytes: int
    store_lines: tuple[str, ...] = ()
    servers: tuple[ServerContents, ...] = ()
    train_examples: int | None
    validation_examples: int | None = None
    steps_per_epoch: int | None
    epochs: int
    run_dir: str
    open_ports: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    settings: Mapping[str, bool | float | str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ContributionSample:
    """Some contributions to a model on parameter servers, one after the other.

    Attributes:
        updates: The update (asynchronous) or the step (synchronous) of each.
        shares: The batch (asynchronous), or the share of a batch (synchronous), of each.
        workers: The index of the worker that computed it.
        staleness: Updates since its parameters were read.
    """

    updates: tuple[int, ...]
    shares: tuple[int, ...]
    workers: tuple[int, ...]
    staleness: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ProgressFacts:
    """Where training is inside an epoch.

    Attributes:
        epoch: The epoch that runs, from 1.
        epochs: Epochs that the run is meant to take.
        step: Batches of this epoch that are done.
        steps_per_epoch: Batches an epoch; `None` where nobody can know.
        metrics: Loss and metrics over the batches of this epoch so far.
        steps_per_second: Recent speed; `None` before there is one.
        examples_per_second: The same in examples.
        eta_s: Seconds until training ends at this speed; `None` where nobody can know.
    """

    epoch: int
    epochs: int
    step: int
    steps_per_epoch: int | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps_per_second: float | None = None
    examples_per_second: float | None = None
    eta_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class EpochFacts:
    """What an epoch brought; one row of metrics.csv.

    Attributes:
        epoch: The epoch that ended, from 1.
        global_step: Optimizer updates that reached the model since the start of the run.
        batches_seen: Batches trained since the start of the run.
        seconds: Training time of this epoch, without validation.
        examples: Training examples of this epoch.
        metrics: Loss, metrics, and their `val_` counterparts where validation ran.
        learning_rate: At the end of the epoch; `None` where the optimizer has none.
        planned_steps: Batches that it was to have, if a stop came before its end, which includes
            its validation; `None` for a whole epoch.
    """

    epoch: int
    global_step: int
    batches_seen: int
    seconds: float
    examples: int
    metrics: Mapping[str, float]
    learning_rate: float | None = None
    planned_steps: int | None = None

    @property
    def is_partial(self) -> bool:
        """Whether a stop came before its end: then it is no epoch to compare with others."""
        return self.planned_steps is not None
