"""The configuration of a run: every key, its type and its default.

`conf/kdist.yaml` shows the same keys to users, with comments; a test keeps the two equal. Values
are read by `kdist.config.load`, never from these defaults alone.
"""

from dataclasses import dataclass, field, fields
from typing import Any

# The section of config.yaml, no setting, that describes what `kdist.fit` was given.
GIVEN = "given"


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """An importable object (`_target_`) and the arguments to call it with."""

    target: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def own_values(self) -> dict[str, Any]:
        """The keys of this section that kdist itself reads; a target gets those that it takes."""
        names = {own.name for own in fields(self)} - {"target", "arguments"}
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class DataConfig(TargetConfig):
    """The data function, and what kdist does with the examples that it returns.

    Attributes:
        path: The file to read, for data functions that take one and for `command=predict`.
        batch_size: Examples a batch, over all replicas (asynchronous modes: of each worker).
        validation_batch_size: The same for validation; `None` means `batch_size`.
        shuffle: Whether each pass over the training data has an order of its own.
        seed: Seed of that order; `None` means the run's `seed`.
        cache_bytes: Largest `tf.data.Dataset` that is kept in memory as arrays.
    """

    path: str | None = None
    batch_size: int = 64
    validation_batch_size: int | None = None
    shuffle: bool = True
    seed: int | None = None
    cache_bytes: int = 1 << 30


@dataclass(frozen=True, kw_only=True)
class StrategyConfig:
    """How training is distributed. `None` leaves the choice to kdist or to the strategy.

    Attributes:
        name: single, mirrored, multiworker or ps.
        devices: Devices of one task; where there are too few, the CPU is split.
        replication: none, in_graph or between_graph.
        update: sync or async.
        collective: How workers add up: auto, ring or nccl.
        allow_custom_train_step: Run a model's own `train_step` on several replicas, though its
            gradients may then be summed instead of averaged.
        placement: How variables are dealt to parameter servers: greedy_bytes or round_robin.
        partition_bytes: A variable of more bytes lies in pieces on several servers.
        sparse: How embedding tables are updated: dense (as Keras does) or rows.
        gather_bytes: Largest sum of tables under `sparse=rows` that the chief copies for callbacks.
        replicas_to_aggregate: Shares that make an update of synchronous parameter servers; `None`
            means `total_replicas`.
        total_replicas: Workers that compute shares; those beyond `replicas_to_aggregate` are
            backups. `None` means all workers.
        max_staleness: Most updates that asynchronous parameter servers may have applied since a
            gradient's parameters were read; an older gradient is computed again. `None` means any.
        min_workers: Fewest workers to go on with when one of them cannot be started again any
            more; `None` means all.
    """

    name: str | None = None
    devices: int | None = None
    replication: str | None = None
    update: str | None = None
    collective: str = "auto"
    allow_custom_train_step: bool = False
    placement: str = "greedy_bytes"
    partition_bytes: int = 16 << 20
    sparse: str = "dense"
    gather_bytes: int = 1 << 30
    replicas_to_aggregate: int | None = None
    total_replicas: int | None = None
    max_staleness: int | None = None
    min_workers: int | None = None


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The tasks that kdist starts on this machine where TF_CONFIG names none, and their deadlines.

    Attributes:
        workers: Worker tasks, for strategies that have them.
        ps: Parameter servers, for strategies that have them.
        host: Name or address that local tasks serve on.
        key: Shared secret that signs the messages between tasks; `None` for none.
        start_timeout_s: How long a task waits for its peers to appear.
        heartbeat_timeout_s: How long a task may show no sign of life before it counts as lost.
        chief_lost_timeout_s: How long the other tasks stay without a word from the chief before
            they end with exit code 75; `None` for `heartbeat_timeout_s`.
        stop_grace_s: How long a task may take to end by itself once the run is over.
        max_restarts: Restarts after losses without a healthy stretch between.
    """

    workers: int = 2
    ps: int = 2
    host: str = "127.0.0.1"
    key: str | None = None
    start_timeout_s: float = 120.0
    heartbeat_timeout_s: float = 30.0
    chief_lost_timeout_s: float | None = None
    stop_grace_s: float = 30.0
    max_restarts: int = 3

    @property
    def chief_patience_s(self) -> float:
        """Return how long the other tasks stay without a word from the chief."""
        own = self.chief_lost_timeout_s
        return self.heartbeat_timeout_s if own is None else own


@dataclass(frozen=True, kw_only=True)
class TunerConfig:
    """A search over hyperparameters: who chooses, over which space, and how trials are run.

    Attributes:
        name: random, grid, bayesian or hyperband; `None` trains one run.
        space: Keys that vary, see `kdist.config.space`; empty (without a hypermodel) for the
            optimizer's learning rate.
        hypermodel: A `keras_tuner.HyperModel`, or a function of hyperparameters that returns a
            model, in place of the model function.
        objective: The metric that trials are compared by, at its best epoch.
        direction: Whether less (min) or more (max) of it is better; `None` goes by its name.
        max_trials: Trials of the whole search; `None` leaves its end to the oracle.
        max_epochs: Epochs of a trial (hyperband: of the longest ones); `None` means `epochs`.
        executions_per_trial: Runs of each trial, with seeds of their own; the mean counts.
        parallel_trials: Trials that run at the same time on this machine.
        seed: Of the oracle's choices; `None` means the run's `seed`.
        max_retries: How often a failed trial is run again.
        max_failures_in_a_row: Failed trials, one after another, that end the search.
        pruner: median stops hopeless trials early; `None` lets all of them end.
        pruner_min_trials: Trials to compare with before one is stopped.
        pruner_min_epochs: Epochs of a trial before it is stopped.
        keep_checkpoints: Whose checkpoints are left at the end: best or all.
        factor: hyperband: how much fewer trials, of how much more epochs, the next round has.
        iterations: hyperband: how often all of its brackets are run.
        num_initial_points: bayesian: random trials before the model of the objective chooses;
            `None` means three for each hyperparameter.
    """

    name: str | None = None
    space: dict[str, Any] = field(default_factory=dict)
    hypermodel: TargetConfig | None = None
    objective: str = "val_loss"
    direction: str | None = None
    max_trials: int | None = 10
    max_epochs: int | None = None
    executions_per_trial: int = 1
    parallel_trials: int = 1
    seed: int | None = None
    max_retries: int = 1
    max_failures_in_a_row: int = 3
    pruner: str | None = None
    pruner_min_trials: int = 3
    pruner_min_epochs: int = 1
    keep_checkpoints: str = "best"
    factor: int = 3
    iterations: int = 1
    num_initial_points: int | None = None


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """What concerns all jobs of a sweep (`-m`) together; a single run does not read it.

    Attributes:
        fail_fast: Start no other job once one has failed.
        metric: The metric that jobs are compared by; `None` means the one in `best` of result.json.
        devices_per_job: Accelerators that each job gets to itself; `None` means one where jobs run
            side by side, else all.
    """

    fail_fast: bool = False
    metric: str | None = None
    devices_per_job: int | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When a run's state is written, and what of it is kept.

    Attributes:
        every_steps: After so many batches; `None` for never because of batches.
        every_epochs: After so many epochs; likewise.
        every_seconds: After so many seconds; likewise.
        keep: How many of the newest stay.
        keep_best: Whether the best one stays, too.
        monitor: The metric that "best" goes by; `None` means `val_loss`, or `loss` without
            validation.
        mode: Whether less or more of it is better: min, max or auto.
        async_: Whether the files are written while training goes on (key `checkpoint.async`).
        copy_bytes: How much of its large tables a parameter server may copy for that.
        dir: Where; `None` means the run folder. Another file system's, as in gs://bucket/path, too.
    """

    every_steps: int | None = None
    every_epochs: int | None = 1
    every_seconds: float | None = 600.0
    keep: int = 3
    keep_best: bool = True
    monitor: str | None = None
    mode: str = "auto"
    async_: bool = True
    copy_bytes: int = 4 << 30
    dir: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether checkpoints are written at all."""
        every = (self.every_steps, self.every_epochs, self.every_seconds)
        return any(each is not None for each in every)


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """What `command=plan` shows beside tasks and addresses."""

    model: bool = False


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a run can be told.

    Attributes:
        command: train, evaluate, predict, export, plan or program.
        run: The run folder that evaluate, predict and export read.
        seed: Seed of weights, order and random layers; `None` draws one for the run.
        epochs: Passes over the training data (or stretches of `steps_per_epoch`).
        steps_per_epoch: Batches an epoch; `None` means one pass over the data.
        max_steps: Batches after which training stops, whatever the epoch.
        steps_per_execution: Batches trained between two returns to Python.
        jit_compile: Whether XLA compiles the computation of a step.
        class_weight: Weight of each class by its index.
        limit_batches: Batches of training and validation data to use, for a quick look.
        init_from: Weights file, model file, checkpoint or run folder to start from.
        resume: auto (go on where this run folder's run was interrupted), never, or the run folder
            or checkpoint to go on from.
        resume_force: Go on although model, data or optimizer are not those of the checkpoint.
        deterministic: Whether TensorFlow must use deterministic kernels.
        verbose: Whether TensorFlow's own messages are shown.
        debug: Whether errors come with their traceback.
    """

    command: str = "train"
    run: str | None = None
    seed: int | None = 0
    epochs: int = 20
    steps_per_epoch: int | None = None
    max_steps: int | None = None
    steps_per_execution: int = 1
    jit_compile: bool = False
    class_weight: dict[int, float] | None = None
    limit_batches: int | None = None
    init_from: str | None = None
    resume: str = "auto"
    resume_force: bool = False
    deterministic: bool = False
    verbose: bool = False
    debug: bool = False
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: TargetConfig = field(default_factory=TargetConfig)
    optimizer: TargetConfig | None = None
    loss: Any = None
    metrics: Any = field(default_factory=list)
    callbacks: dict[str, TargetConfig] = field(default_factory=dict)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tuner: TunerConfig = field(default_factory=TunerConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    program: TargetConfig = field(default_factory=TargetConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
