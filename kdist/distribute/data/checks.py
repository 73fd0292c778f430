"""Checks of data against the cluster, before training starts."""

from kdist.distribute.data.source import BatchSource
from kdist.errors import ConfigError


def check_enough_examples(source: BatchSource, num_workers: int, *, key: str) -> None:
    """Refuse data that would leave a worker without a single example.

    Raises:
        ConfigError: If there are fewer examples than workers.
    """
    if source.num_examples is not None and source.num_examples < num_workers:
        raise ConfigError(
            f"Each worker needs at least one example. Received: {source.num_examples} examples in "
            f"{key}, {num_workers} workers. Use fewer workers (cluster.workers) or more data."
        )


def num_steps(source: BatchSource, steps_per_epoch: int | None, *, key: str) -> int:
    """Return the batches of an epoch: what the user asked for, else one pass.

    Raises:
        ConfigError: If neither is known.
    """
    if steps_per_epoch is not None:
        return steps_per_epoch
    if source.batches_per_pass is None:
        raise ConfigError(
            f"The size of {key} is not known, so an epoch needs a length. "
            "Received: steps_per_epoch=None. Set steps_per_epoch, or tell the size with "
            "tf.data.experimental.assert_cardinality."
        )
    return source.batches_per_pass
