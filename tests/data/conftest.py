"""Read sources as plain numpy, worker by worker."""

import numpy as np
import pytest

from kdist.distribute.data import DataSettings, make_source
from kdist.distribute.shares import WorkerShare


def read(source, num_batches, *, first_batch=0, share=None, repeat=True, stride=1):
    """Return up to `num_batches` elements as numpy nests."""
    dataset = source.dataset(first_batch, share or WorkerShare(), repeat=repeat, stride=stride)
    return list(dataset.take(num_batches).as_numpy_iterator())


def rows_read(source, num_batches, **options):
    """Return each batch's first input column as a list of row numbers."""
    return [
        element[0].reshape(len(element[0]), -1)[:, 0].tolist()
        for element in read(source, num_batches, **options)
    ]


@pytest.fixture
def numbered():
    """Return a function that makes a source whose inputs are their own row numbers."""

    def make(num_rows, **settings):
        x = np.arange(num_rows, dtype="float32").reshape(-1, 1)
        return make_source(
            (x, np.arange(num_rows)), settings=DataSettings(**settings), key="data.train"
        )

    return make
