"""What optimizer clones count, put together over the clones of one store."""

from collections.abc import Callable, Sequence

import keras

from kdist.distribute import keras_adapter
from kdist.distribute.store.optimizer import StoreOptimizer, updating_optimizers
from kdist.distribute.values import to_numpy


def most_advanced(
    clones: Sequence[StoreOptimizer], listed: Callable[[StoreOptimizer], Sequence[keras.Variable]]
) -> list[keras.Variable]:
    """Return counters and the like, each from the clone that counted most.

    Clones count alike, except those inside a `MultiOptimizer` that have no variable on a server.

    Args:
        clones: Of one store.
        listed: Returns the variables of a clone, in the same order for each.
    """

    def count(clone: StoreOptimizer, variable: keras.Variable) -> int:
        owners = [
            each
            for each in updating_optimizers(clone.optimizer)
            if any(own is variable for own in each.variables)
        ]
        return int(to_numpy(keras_adapter.own_iterations(owners[0] if owners else clone.inner)))

    columns = [[(clone, variable) for variable in listed(clone)] for clone in clones]
    rows = zip(*columns, strict=True)
    return [max(row, key=lambda pair: count(*pair))[1] for row in rows]
